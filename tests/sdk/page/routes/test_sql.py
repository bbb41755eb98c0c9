"""SQL over HTTP."""

import itertools

import pytest

from chiplog_page.routes import sql as routes_sql
from chiplog_page.routes.sql import ROWS_MAX
from chiplog_page.server.source import CLIENTS
from tests.support.page_client import PageClient


def test_a_select_is_answered_and_a_long_one_is_cut(reader: PageClient) -> None:
    assert reader.ask("/api/sql", "POST", {"query": "SELECT 1 AS n, 'x' AS t"}).json == {
        "columns": ["n", "t"],
        "rows": [[1, "x"]],
        "n_rows": 1,
    }
    long = reader.ask("/api/sql", "POST", {"query": f"SELECT range AS n FROM range({ROWS_MAX + 5})"}).json
    assert (long["n_rows"], len(long["rows"]), long["rows"][-1]) == (ROWS_MAX + 5, ROWS_MAX, [ROWS_MAX - 1])


def test_a_result_of_many_bytes_is_cut(reader: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_sql, "TEXT_BYTES_MAX", 1_000)
    answer = reader.ask("/api/sql", "POST", {"query": "SELECT repeat('x', 96) AS t FROM range(20)"})
    assert (answer.json["n_rows"], answer.json["rows"]) == (20, [["x" * 96]] * 10)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("MAP {1.5::DECIMAL(3,1): 1}", {"1.5": 1}),
        ("MAP {TIME '12:00:00': 1}", {"12:00:00": 1}),
        ("MAP {'\\xFF'::BLOB: 1}", {"ff": 1}),
        ("MAP {INTERVAL 1 DAY: 1}", {"1 day, 0:00:00": 1}),
        ("MAP {12345678901234567890123: 2}", {"12345678901234567890123": 2}),
        ("MAP {DATE '2026-01-02': 2.5::DECIMAL(3,1)}", {"2026-01-02": 2.5}),
    ],
)
def test_odd_keys_are_text(reader: PageClient, value: str, found: object) -> None:
    answer = reader.ask("/api/sql", "POST", {"query": f"SELECT {value} AS value"})
    assert (answer.status, answer.json["rows"]) == (200, [[found]])


def test_integers_and_decimals_keep_all_digits(reader: PageClient) -> None:
    query = (
        "SELECT 1767323045123456789 AS ns, 9007199254740991 AS safe, 170141183460469231731687303715884105727 AS huge, "
        "sum(1) AS total, 1.5 AS short, 12345678901234567.89 AS long, [9007199254740993] AS list"
    )
    [row] = reader.ask("/api/sql", "POST", {"query": query}).json["rows"]
    assert row[:3] == ["1767323045123456789", 9007199254740991, "170141183460469231731687303715884105727"]
    assert row[3:] == [1, 1.5, "12345678901234567.89", ["9007199254740993"]]


def test_a_wrong_query_says_why(reader: PageClient) -> None:
    answer = reader.ask("/api/sql", "POST", {"query": "SELECT nothing FROM runs"})
    assert (answer.status, answer.json["error"]["kind"]) == (400, "sql")
    assert "nothing" in answer.json["error"]["message"]
    assert (
        reader.ask("/api/sql", "POST", {"query": " "}).json["error"]["message"] == "query is missing; give one SELECT"
    )
    assert reader.ask("/api/sql", "POST", {"query": "DROP TABLE x"}).status == 400


def test_a_query_ends_with_its_request(reader: PageClient) -> None:
    forever = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE (a.range + b.range) % 9 = 1"
    for _ in range(CLIENTS):
        with reader.asked("/api/sql", "POST", {"query": forever}):
            pass
    assert reader.ask("/api/sql", "POST", {"query": "SELECT 1"}).status == 200  # all clients are free again


def test_words_for_completion_are_the_views_with_their_columns(reader: PageClient) -> None:
    words = reader.get("words")
    assert words["runs"][:2] == ["run_id", "project"]
    assert "metrics" in words and not any(name.startswith("base") for name in itertools.chain(words))
