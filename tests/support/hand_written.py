"""Databases that tests write by hand: the tables of the index, and its rollups after the rows."""

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from chiplog_client import database_file
from chiplog_client.client import Client, connect
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.sql import rollups_sql, tables_sql, views_sql


@contextlib.contextmanager
def hand_written(root: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the database of a data directory, created if needed, and compute its rollups at the end of the block."""
    where = paths_for_root(root)
    ensure_private_dir(where.collector)
    with duckdb.connect(str(where.index)) if where.index.exists() else empty_database(where.index) as database:
        yield database
        compute_rollups(database)


@contextlib.contextmanager
def kept_open(root: Path) -> Iterator[Path]:
    """Hold a database open that only this process reads; yield its data directory.

    A query opens and closes the file, which takes 30 ms of CPU time. DuckDB shares what is open in a process: with this
    1 ms. No collector can start there before the end of the block.
    """
    connection = database_file.open_file(paths_for_root(root))
    assert not isinstance(connection, str), connection
    database_file._open_files.discard(connection)  # a forked child of a later test reads other files
    with connection:
        yield root


@contextlib.contextmanager
def filled(root: Path, fill: Callable[[duckdb.DuckDBPyConnection], None]) -> Iterator[Client]:
    """Let a function fill the database of a data directory, and connect to it."""
    with hand_written(root) as database:
        fill(database)
    with kept_open(root), connect(dir=root, start=False) as client:
        yield client


def empty_database(path: Path) -> duckdb.DuckDBPyConnection:
    """Create and open the database of an index without rows: its tables, rollups and views."""
    path.write_bytes(_empty_file())
    return duckdb.connect(str(path))


@cache
def _empty_file() -> bytes:
    """Return the file of such a database. To create one takes 300 ms of CPU time."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "index.duckdb"
        with duckdb.connect(str(path)) as database:
            database.execute(tables_sql())
            database.execute(rollups_sql())
            database.execute(views_sql())
        return path.read_bytes()


def compute_rollups(database: duckdb.DuckDBPyConnection) -> None:
    """Compute the rollups again, which the index would have kept while it wrote the rows."""
    database.execute(rollups_sql())
