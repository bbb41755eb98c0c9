"""A query is streamed from a transaction that cannot write, and each failure has its kind and one line."""

from collections.abc import Iterator

import duckdb
import pytest
from arro3.io import read_ipc_stream

from chiplog_schemas.query import result_sink
from chiplog_schemas.query.execute import DAMAGED, Failure, failure_of, stream_result, timeout_of
from chiplog_schemas.query.query_messages import ERROR_KINDS
from chiplog_schemas.query.result_sink import ResultSink


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"memory_limit": "64MB", "max_temp_directory_size": "0B"}) as connection:
        connection.execute("CREATE TABLE t AS FROM range(3) r(i)")
        yield connection


def failed(connection: duckdb.DuckDBPyConnection, sql: str, params: list[object] | None = None) -> Failure:
    sink = ResultSink()
    with pytest.raises(Exception) as caught:
        stream_result(connection, sql, params, sink)
    failure = failure_of(caught.value, sink)
    assert "\n" not in failure.message
    return failure


def test_a_result_is_an_arrow_stream_and_the_transaction_is_open_until_the_caller_ends_it(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    sink = ResultSink()
    stream_result(connection, "SELECT i FROM t WHERE i >= $least ORDER BY i", {"least": 1}, sink)
    batches = list(read_ipc_stream(memoryview(sink.data)))
    assert sum(batch.num_rows for batch in batches) == 2
    connection.execute("ROLLBACK")
    with pytest.raises(duckdb.TransactionException):
        connection.execute("ROLLBACK")


def test_a_query_that_writes_changes_nothing(connection: duckdb.DuckDBPyConnection) -> None:
    assert failed(connection, "INSERT INTO t VALUES (7) RETURNING i").kind == "sql"
    connection.execute("ROLLBACK")
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(3,)]


def test_a_transaction_of_a_failed_query_can_be_ended(connection: duckdb.DuckDBPyConnection) -> None:
    failure = failed(connection, "SELECT if(i = 150000, error('late'), i) FROM range(200000) r(i)")
    assert (failure.kind, "late" in failure.message) == ("sql", True)
    connection.execute("ROLLBACK")
    sink = ResultSink()
    stream_result(connection, "SELECT 1", None, sink)
    assert sink.data


def test_only_a_query_that_names_their_macro_looks_for_logged_tables(connection: duckdb.DuckDBPyConnection) -> None:
    stream_result(connection, "SELECT 'media', getvariable('media_tables')", None, ResultSink())
    connection.execute("ROLLBACK")
    for sql in ("FROM media_table('r', 'k', 1)", 'FROM "Media_Table"(?, ?, ?)'):
        message = failed(connection, sql).message
        assert "tables_of_steps" in message, "here is no such view"
        connection.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("sql", "params", "kind"),
    [
        ("SELECT no_such_column FROM t", None, "sql"),
        ("SELECT $1", [], "sql"),
        ("SELECT list(i ORDER BY hash(i)) FROM range(100000000) r(i)", None, "too_large"),
    ],
)
def test_each_error_of_duckdb_has_its_kind(
    connection: duckdb.DuckDBPyConnection, sql: str, params: list[object] | None, kind: str
) -> None:
    assert failed(connection, sql, params).kind == kind


def test_a_result_beyond_its_bound_is_too_large(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sink, "RESULT_BYTES_MAX", 1_000)
    failure = failed(connection, "SELECT uuid() FROM range(10000)")
    assert failure.kind == "too_large" and "exceeds the limit of 1000 bytes" in failure.message


def test_damage_and_faults_of_chiplog_are_told_from_errors_of_the_query() -> None:
    sink = ResultSink()
    damage = duckdb.IOException('IO Error: The file "x" exists, but it is not a valid DuckDB database file!')
    assert failure_of(damage, sink).kind == DAMAGED
    assert failure_of(RuntimeError("a\nb"), sink) == Failure("internal", "RuntimeError: a")
    assert failure_of(TypeError("a parameter"), sink) == Failure("sql", "a parameter")


def test_a_query_that_takes_too_long_is_named_with_its_limit() -> None:
    failure = timeout_of(2.5)
    assert failure.kind in ERROR_KINDS and "longer than 2.5 s" in failure.message
