"""Values of queries as JSON."""

import json
import threading
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest

from chiplog_client.results.result import QueryError
from chiplog_page.server.json_response import JsonResponse, columns_of, query_error_response, to_exact_json, to_json
from tests.support.page_client import PageClient


def test_what_json_lacks_becomes_null_or_text() -> None:
    values = [
        float("nan"),
        float("inf"),
        2**70,
        Decimal("1.5"),
        b"\xff",
        datetime(2026, 1, 2, 3, 4, 5, 6),
        {1: "a"},
        "é",
    ]
    assert json.loads(to_json(values)) == [
        None,
        None,
        float(2**70),
        1.5,
        "ff",
        "2026-01-02T03:04:05.000006Z",
        {"1": "a"},
        "é",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**53 - 1, "9007199254740991"),
        (-(2**53) + 1, "-9007199254740991"),
        (2**53, '"9007199254740992"'),
        (-(2**53), '"-9007199254740992"'),
        (1767323045123456789, '"1767323045123456789"'),
        (2**70, '"1180591620717411303424"'),
        (True, "true"),
        (1.5, "1.5"),
        (Decimal("1.50"), "1.5"),
        (Decimal("-0.1"), "-0.1"),
        (Decimal(2**60), '"1152921504606846976"'),
        (Decimal("0.12345678901234567890"), '"0.12345678901234567890"'),
        (Decimal("0.0000000000000000000000000000000000001"), "1e-37"),
        (Decimal("1.2345678901234567890e-8"), '"0.000000012345678901234567890"'),
        ({"a": [2**53, 1]}, '{"a":["9007199254740992",1]}'),
        (
            {2**53: (2**60, time(12, tzinfo=UTC))},
            '{"9007199254740992":["1152921504606846976","12:00:00+00:00"]}',
        ),
    ],
)
def test_numbers_that_javascript_would_change_are_text(value: object, text: str) -> None:
    assert to_exact_json(value) == text.encode()


def test_times_with_a_zone_are_text() -> None:
    noon = time(12, tzinfo=timezone(timedelta(hours=2)))
    assert json.loads(to_json([noon, {noon: (noon, 2**70)}])) == [
        "12:00:00+02:00",
        {"12:00:00+02:00": ["12:00:00+02:00", 2.0**70]},
    ]


def test_rows_are_sent_with_their_names_once() -> None:
    assert columns_of([{"b": 2, "a": 1}], ["a", "b"]) == {"columns": ["a", "b"], "rows": [[1, 2]]}


@pytest.mark.parametrize(
    ("kind", "status"), [("refused", 400), ("sql", 400), ("timeout", 504), ("unreachable", 503), ("internal", 500)]
)
def test_an_error_has_a_status_by_its_kind(kind: str, status: int) -> None:
    response = query_error_response(QueryError(kind, "no"))
    assert response.status_code == status
    assert json.loads(bytes(response.body)) == {"error": {"kind": kind, "message": "no"}}


@pytest.mark.full
def test_the_text_of_an_answer_is_made_in_the_thread_of_its_query(
    reader: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def render(self: JsonResponse, content: object) -> bytes:
        threads.append(threading.current_thread().name)
        return to_json(content)

    monkeypatch.setattr(JsonResponse, "render", render)
    assert reader.get("runs/even/curves?key=loss") and reader.get("runs/even") and reader.get("runs/even/ranks")
    assert threads == ["chiplog-page-query"] * 3
