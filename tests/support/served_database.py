"""A database that answers queries as a collector's does while a test writes it."""

import contextlib
from collections.abc import Iterator

import duckdb

from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.file_lock import Lock
from tests.support.run_builder import RunBuilder


@contextlib.contextmanager
def served_database(place: Paths) -> Iterator[duckdb.DuckDBPyConnection]:
    """Answer queries as the collector of a data directory does, and yield a cursor of its database."""
    ensure_private_dir(place.run)
    lock = Lock(place.collector / "lock")
    with duckdb.connect(str(place.index)) as connection:
        lock_down(connection, files=place.files)
        service = QueryService(connection, place.query_address, files=place.files)
        service.start()
        try:
            yield connection.cursor()
        finally:
            service.close()
    lock.release()


@contextlib.contextmanager
def changing(database: duckdb.DuckDBPyConnection) -> Iterator[RunBuilder]:
    """Write rows and the position, so that open pages are notified. Producers must stay: no rollup follows them."""
    database.execute("BEGIN")
    yield RunBuilder(database)
    database.execute("UPDATE base.position SET next_number = next_number + 1; COMMIT")
