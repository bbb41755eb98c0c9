"""A transaction of DuckDB as a `with` block."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Commit at the end, roll back on any exception."""
    connection.execute("BEGIN TRANSACTION")
    try:
        yield
    except BaseException:
        with suppress(duckdb.Error):  # DuckDB has already rolled back; the current exception has the reason
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
