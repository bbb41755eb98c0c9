"""Columns of numpy that DuckDB reads as a table, to insert their rows."""

import contextlib
from collections.abc import Iterator

import duckdb

from chiplog_collector.index.apply.write_batch import Columns

NAN_KEPT = "coalesce({}, 'nan'::DOUBLE)"  # DuckDB reads numpy's NaN as null; chiplog stores no null value


class Incoming:
    """The columns of the next insert into each table of a connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._held: dict[str, Columns] = {}  # registered once per table, refilled for each insert

    @contextlib.contextmanager
    def hold(self, table: str, columns: Columns) -> Iterator[str]:
        """Yield the name under which SQL reads the columns in this block. A table always has the same columns."""
        held = self._held.get(table)
        if held is None:
            held = self._held[table] = dict(columns)
            self._connection.register(f"incoming_{table}", held)
        held.update(columns)
        yield f"incoming_{table}"
        held.clear()  # frees the columns; the registration, half the cost of a small insert, stays

    def forget(self) -> None:
        """Register again: a transaction was rolled back, and with it its registrations."""
        self._held.clear()
