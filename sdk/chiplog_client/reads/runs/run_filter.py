"""The filter of the table of runs, as people type it on the page: `lr<0.01 state:failed "two words" -tag:old`."""

import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from chiplog_client.client import Client
from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.runs.runs_query import DURATION, MAPS, VIEW_COLUMNS, RunsRequest, keyed, read_runs

_COMPLETE = "complete"
_COUNTED = ("pending", "lost")  # what it follows from
_ALIASES = {
    "id": "run_id",
    "run": "run_id",
    "group": "run_group",
    "tag": "tags",
    "started": "created_at",
    "labels": "n_labels",
    "failures": "n_failed",
    "failed": "n_failed",
    "attempts": "n_attempts",
    "running": "n_running",
    "primary": "primary_label",
    "duration": DURATION,
    "took": DURATION,
}
# Words are searched for in these, and in the keys that the filter names. The primary is rank0 nearly always.
_SEARCHED = ("run_id", "project", "name", "run_group", "job_type", "tags", "notes", "state", "created_at", "ended_at")
_PIECE = re.compile(r'(-?)((?:"[^"]*"|[^\s"])+)')
_CONDITION = re.compile(r'([^":<>=][^:<>=]*)(<=|>=|<|>|=|:)(.*)', re.DOTALL)
_DATE = re.compile(r"\d{4}-\d\d")
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ALL = (1 << 63) - 1
_KEYS = """
SELECT 'config' AS kind FROM config WHERE key = $key UNION ALL SELECT 'summary' FROM run_summary WHERE key = $key
"""
Row = dict[str, Any]
Test = Callable[[Row], bool]


class RunFilter(NamedTuple):
    """Conditions that all hold for a run, and the columns of `read_runs` that they need."""

    columns: tuple[str, ...]
    tests: tuple[Test, ...]

    def matches(self, row: Row) -> bool:
        """Return True if a row of `read_runs` matches."""
        return all(test(row) for test in self.tests)


def read_filtered(client: Client, request: RunsRequest, text: str) -> list[Row]:
    """Return the rows of `read_runs` that match a filter, too. `n_all` counts them without the limit.

    Args:
        client: The collector.
        request: Which runs, in which order.
        text: Words, or conditions: `column:part`, `column=value`, `column<number` and `>`, `<=`, `>=`; a minus in front
            negates one. A column is one of the page's table, or a key of config or summary.

    Raises:
        BadRequestError: The filter is wrong, or no run has the column.
        QueryError: A query has no result.
    """
    chosen = parse_filter(text, lambda name: _column_of(client, name))
    columns = list(dict.fromkeys([*request.columns, *chosen.columns]))
    rows = [row for row in read_runs(client, replace(request, columns=columns, limit=_ALL)) if chosen.matches(row)]
    return [{**row, "n_all": len(rows)} for row in rows[: request.limit]]


def parse_filter(text: str, column_of: Callable[[str], str | None]) -> RunFilter:
    """Return the conditions of a filter. column_of: the column that a name means. Raises BadRequestError."""
    columns = list(_SEARCHED)
    tests: list[Test] = []
    for minus, word in _PIECE.findall(text):
        found = _CONDITION.fullmatch(word)
        if found is None:
            test = _word_test(word.replace('"', "").lower(), columns)
        else:
            name, sign, value = found[1], found[2], found[3].replace('"', "")
            column = column_of(name)
            if column is None:
                raise BadRequestError(f'no run has a column {name!r}; put words with {sign} in quotes: "{word}"')
            if not value:
                raise BadRequestError(f"{name}{sign} lacks a value; write {name}{sign}VALUE")
            columns += _COUNTED if column == _COMPLETE else [column]
            test = _comparison(column, sign, value, name)
        tests.append(_negated(test) if minus else test)
    return RunFilter(tuple(dict.fromkeys(columns)), tuple(tests))


def _column_of(client: Client, name: str) -> str | None:
    column = _ALIASES.get(name, name)
    if column in (*VIEW_COLUMNS, DURATION, _COMPLETE):
        return column
    kind, dot, key = name.partition(".")
    asked = key if dot and kind in MAPS else name
    kinds = {row["kind"] for row in client.sql(_KEYS, {"key": asked}).rows()}
    if asked != name:
        return name if kind in kinds else None
    return next((f"{kind}.{name}" for kind in MAPS if kind in kinds), None)


def _negated(test: Test) -> Test:
    return lambda row: not test(row)


def _word_test(part: str, columns: Sequence[str]) -> Test:
    def test(row: Row) -> bool:
        texts = (_words(row[column]) for column in columns if column in _SEARCHED or keyed(column))
        return part in "\n".join(word for words in texts for word in words)

    return test


def _comparison(column: str, sign: str, value: str, name: str) -> Test:
    limit, part = _number(value), value.lower()
    if sign == ":":
        return lambda row: any(part in own for own in _words(_value(row, column)))
    if sign == "=":
        return lambda row: _number(own := _value(row, column)) == limit or part in _words(own)
    if math.isnan(limit):
        raise BadRequestError(
            f"{name}{sign}{value}: {value!r} is neither a number nor a date; write {name}:{value} for a text"
        )
    holds = _ORDERS[sign]
    return lambda row: holds(_number(_value(row, column)), limit)


def _value(row: Row, column: str) -> Any:
    if column == "name":
        return row["name"] or row["run_id"]
    if column == _COMPLETE:
        if row["lost"]:
            return "lost"
        return "unknown" if row["pending"] is None else "pending" if row["pending"] else "yes"
    return row[column]


def _words(value: Any) -> list[str]:
    return [] if value is None else [_text(item).lower() for item in (value if isinstance(value, list) else [value])]


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _number(value: Any) -> float:
    """Return a number, of a date its seconds since 1970; NaN for all else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC).timestamp()
    if not isinstance(value, str):
        return math.nan
    try:
        if _DATE.match(value) and not value.isdecimal():
            moment = datetime.fromisoformat(value if len(value) > len("2026-01") else f"{value}-01")
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return float(value.replace("_", " "))
    except ValueError:
        return math.nan
