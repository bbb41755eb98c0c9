"""Columns of numpy that DuckDB reads as a table: registered once, refilled, and registered again after a rollback."""

import duckdb
import numpy as np

from chiplog_collector.index.numpy_source import NAN_KEPT, Incoming


def test_each_insert_has_its_own_columns_and_none_stays() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE facts (a INTEGER, b DOUBLE)")
        incoming = Incoming(connection)
        for first in (0, 10):
            columns = {"a": np.arange(first, first + 2, dtype=np.int32), "b": np.array([0.5, np.nan])}
            with incoming.hold("facts", columns) as source:
                connection.execute(f"INSERT INTO facts SELECT a, {NAN_KEPT.format('b')} FROM {source}")
            assert incoming._held == {"facts": {}}
        assert connection.execute("SELECT a, b::VARCHAR FROM facts ORDER BY a").fetchall() == [
            *((0, "0.5"), (1, "nan")),
            *((10, "0.5"), (11, "nan")),
        ]


def test_after_a_rollback_columns_are_registered_again() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE facts (a INTEGER)")
        incoming = Incoming(connection)
        for end in ("ROLLBACK", "COMMIT"):
            connection.execute("BEGIN TRANSACTION")
            with incoming.hold("facts", {"a": np.array([1], dtype=np.int32)}) as source:
                connection.execute(f"INSERT INTO facts SELECT a FROM {source}")
            connection.execute(end)
            if end == "ROLLBACK":
                incoming.forget()
        assert connection.execute("SELECT a FROM facts").fetchall() == [(1,)]
