"""Values of queries as JSON."""

import json
from datetime import datetime
from decimal import Decimal

import pytest

from chiplog.page.json_response import columns_of, query_error_response, to_json
from chiplog.query.result import QueryError


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


def test_rows_are_sent_with_their_names_once() -> None:
    assert columns_of([{"b": 2, "a": 1}], ["a", "b"]) == {"columns": ["a", "b"], "rows": [[1, 2]]}


@pytest.mark.parametrize(
    ("kind", "status"), [("refused", 400), ("sql", 400), ("timeout", 504), ("unreachable", 503), ("internal", 500)]
)
def test_an_error_has_a_status_by_its_kind(kind: str, status: int) -> None:
    response = query_error_response(QueryError(kind, "no"))
    assert response.status_code == status
    assert json.loads(bytes(response.body)) == {"error": {"kind": kind, "message": "no"}}
