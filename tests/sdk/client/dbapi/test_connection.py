"""Connections and cursors of PEP 249, on a database file; the collector answers the same client."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

from chiplog_client import client as client_module
from chiplog_client import dbapi
from chiplog_client.dbapi import connection as connection_module
from chiplog_client.dbapi.connection import Connection, Cursor
from chiplog_client.result_source import FileResult
from chiplog_schemas.query import result_sink as sink_module


@pytest.fixture
def connection(three_runs: Path) -> Iterator[Connection]:
    with dbapi.connect(dir=three_runs) as opened:
        yield opened


@pytest.fixture
def cursor(connection: Connection) -> Cursor:
    return connection.cursor()


def test_the_module_states_its_level_threads_and_parameters() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 2, "qmark")


def test_a_query_takes_values_for_question_marks_and_returns_tuples(cursor: Cursor) -> None:
    query = "SELECT step, ts, value FROM metrics WHERE key = ? AND label = ? AND step < ? ORDER BY run_id, step"
    rows = cursor.execute(query, ["lr", "rank0", 2]).fetchall()
    assert rows[:2] == [(0, datetime(2026, 1, 2, 3, 4, 5), 2.0), (1, datetime(2026, 1, 2, 3, 4, 6), 2.01)]
    assert len(rows) == cursor.rowcount == 6
    assert cursor.execute("SELECT ? IN (SELECT unnest(?)) AS a", ("x", ["x", "y"])).fetchall() == [(True,)]
    assert cursor.execute("SELECT 1 AS a", ()).fetchall() == [(1,)]


def test_the_description_has_a_name_and_a_type_object_for_each_column(cursor: Cursor) -> None:
    assert (cursor.description, cursor.rowcount) == (None, -1)
    cursor.execute(
        "SELECT run_id, tags, created_at, n_labels, state IS NULL AS b, 'x'::BLOB AS c FROM runs WHERE false"
    )
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["run_id", "tags", "created_at", "n_labels", "b", "c"]
    kinds = [dbapi.STRING, dbapi.NESTED, dbapi.DATETIME, dbapi.NUMBER, dbapi.NUMBER, dbapi.BINARY]
    assert [column[1] for column in cursor.description] == kinds
    assert {column[2:] for column in cursor.description} == {(None,) * 5}


@pytest.mark.parametrize("rows_at_once", [1, 3, 10_000])
def test_rows_are_fetched_one_by_one_in_parts_and_all_in_order(
    cursor: Cursor, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ROWS_AT_ONCE", rows_at_once)
    expected = [(number,) for number in range(10)]
    assert list(cursor.execute("SELECT range AS n FROM range(10)")) == expected
    assert cursor.fetchone() is None
    cursor.execute("SELECT range AS n FROM range(10)")
    assert [cursor.fetchone(), *cursor.fetchmany(), *cursor.fetchmany(3)] == expected[:5]
    cursor.arraysize = 2
    assert [*cursor.fetchmany(), *cursor.fetchall()] == expected[5:]
    assert (cursor.fetchone(), cursor.fetchmany(5), cursor.fetchall()) == (None, [], [])


def test_a_large_result_is_read_in_parts_and_left_with_the_cursor(
    cursor: Cursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "SMALL_RESULT_BYTES", 100_000)
    monkeypatch.setattr(sink_module, "RESULT_SPILL_BYTES", 100_000)
    cursor.execute("SELECT range AS n, hash(range) AS h FROM range(200000)")
    stream = cursor._stream
    assert stream is not None and type(stream._source) is FileResult
    assert (cursor.rowcount, cursor.fetchmany(2)[1][0]) == (200_000, 1)
    assert [row[0] for row in cursor] == list(range(2, 200_000))
    cursor.execute("SELECT range AS n, hash(range) AS h FROM range(200000)").fetchone()
    stream = cursor._stream
    cursor.close()
    assert stream is not None and list(stream) == []


def test_a_second_query_replaces_the_first_ones_rows(cursor: Cursor) -> None:
    cursor.execute("SELECT range AS n FROM range(10)").fetchone()
    assert cursor.execute("SELECT 'x' AS a").fetchall() == [("x",)]
    with pytest.raises(dbapi.ProgrammingError):
        cursor.execute("selec")
    with pytest.raises(dbapi.InterfaceError, match="no result"):
        cursor.fetchall()


def test_commit_and_rollback_do_nothing(connection: Connection) -> None:
    cursor = connection.cursor().execute("SELECT 7 AS n")
    connection.commit()
    connection.rollback()
    cursor.setinputsizes([1])
    cursor.setoutputsize(1)
    assert cursor.fetchone() == (7,)


@pytest.mark.parametrize(
    ("query", "params", "error", "kind"),
    [
        ("selec 1", None, dbapi.ProgrammingError, "sql"),
        ("SELECT nope FROM runs", None, dbapi.ProgrammingError, "sql"),
        ("SELECT ?", [1, 2], dbapi.ProgrammingError, "sql"),
        ("DELETE FROM runs", None, dbapi.NotSupportedError, "refused"),
        ("SELECT 1; SELECT 2", None, dbapi.NotSupportedError, "refused"),
        ("SELECT ?", [object()], dbapi.NotSupportedError, "refused"),
    ],
)
def test_an_error_is_of_the_class_that_pep_249_names(
    cursor: Cursor, query: str, params: list[object] | None, error: type[dbapi.Error], kind: str
) -> None:
    with pytest.raises(error) as raised:
        cursor.execute(query, params)
    assert raised.value.kind == kind
    assert "\n" not in str(raised.value)


def test_executemany_is_refused(cursor: Cursor) -> None:
    with pytest.raises(dbapi.NotSupportedError, match="queries only read; call execute"):
        cursor.executemany("INSERT INTO runs VALUES (?)", [[1], [2]])


def test_a_closed_cursor_or_connection_is_an_error_that_names_it(three_runs: Path) -> None:
    with dbapi.connect(dir=three_runs) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 AS a")
        with pytest.raises(dbapi.InterfaceError, match="cursor is closed"):
            cursor.fetchone()
        left = connection.cursor()
    connection.close()
    for call in (connection.cursor, connection.commit, connection.rollback, lambda: left.execute("SELECT 1")):
        with pytest.raises(connection.InterfaceError, match="connection is closed"):
            call()


def test_where_nothing_is_recorded_or_the_address_is_wrong_connect_says_so(tmp_path: Path) -> None:
    with pytest.raises(dbapi.OperationalError, match="nothing has been recorded"):
        dbapi.connect(dir=tmp_path)
    with pytest.raises(dbapi.InterfaceError, match="write tcp://HOST:PORT"):
        dbapi.connect("host")


def test_pandas_reads_a_query_through_a_connection(connection: Connection) -> None:
    query = "SELECT key, step, ts, value FROM metrics WHERE step < ? ORDER BY ALL"
    with pytest.warns(UserWarning, match="pandas only supports SQLAlchemy connectable"):
        frame = pd.read_sql(query, connection, params=[2])
    assert list(frame.columns) == ["key", "step", "ts", "value"]
    assert (len(frame), frame["value"].dtype, frame["ts"].dtype.kind) == (30, float, "M")
