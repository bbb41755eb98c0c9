"""Values of queries as JSON."""

import json
import threading
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal

import pytest

from chiplog.page.json_response import JsonResponse, columns_of, query_error_response, to_json
from chiplog.query.result import QueryError
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
