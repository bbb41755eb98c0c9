"""Build the query of `chiplog runs`: which runs, in which order, and the columns that are needed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from chiplog_client.nearest_names import nearest

SPARK_BUCKETS = 24  # as many characters as a column of a table may take
# Columns of a run, with their expressions over the view `runs`.
_OF_VIEW = {
    **{name: f"r.{name}" for name in ("run_id", "project", "name", "run_group", "job_type", "tags", "notes", "state")},
    "labels": "r.n_labels",
    "attempts": "r.n_attempts",
    "failed": "r.n_failed",
    "running": "r.n_running",
    **{name: f"r.{name}" for name in ("primary_label", "exit_code", "created_at", "ended_at")},
    "duration_s": "CASE WHEN r.ended_at IS NOT NULL OR r.state = 'running' "
    "THEN greatest(epoch(coalesce(r.ended_at, $now::TIMESTAMP) - r.created_at), 0) END",
}
_COUNTED = ("complete", "pending", "lost")  # of the view `completeness`, for the runs of the page only
COLUMNS = (*_OF_VIEW, *_COUNTED)
# The headings of the table name columns, too.
ALIASES = {"run": "run_id", "group": "run_group", "tries": "attempts", "started": "created_at", "took": "duration_s"}
_KEYED = {"config": "config", "summary": "run_summary"}  # prefix of a column -> view
_KNOWN = ", ".join([*COLUMNS, *(f"{prefix}.KEY" for prefix in _KEYED)])
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which runs: those that match all of this, in this order."""

    columns: Sequence[str]
    project: str | None = None
    state: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()
    texts: Sequence[str] = ()
    since: datetime | None = None  # naive UTC
    sort: str = "created_at"
    descending: bool = True
    limit: int = 50
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))

    @property
    def is_filtered(self) -> bool:
        """Return True if some runs may not match."""
        return any((self.project, self.state, self.group, self.tags, self.texts, self.since))


def parse_columns(text: str) -> list[str]:
    """Return the columns of `run_id,state,config.lr`. Raises UsageError with the nearest columns."""
    return [column_name(name.strip()) for name in text.split(",") if name.strip()]


def column_name(name: str) -> str:
    """Return the name of a column; a heading of the table names one, too. Raises UsageError."""
    name = ALIASES.get(name, name)
    if keyed(name) is None and name not in COLUMNS:
        near = nearest(name, COLUMNS)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"use {_KNOWN}"
        if name and "." not in name:
            keyed_names = f"'config.{name}' or 'summary.{name}'"
            hint = (
                f"{hint} For a key write {keyed_names}"
                if near
                else f"for a key write {keyed_names}; columns are {_KNOWN}"
            )
        raise click.UsageError(f"column {name!r} is unknown; {hint}")
    return name


def keyed(column: str) -> tuple[str, str] | None:
    """Return the view and the key of a column such as config.lr; None for another."""
    prefix, dot, key = column.partition(".")
    return (_KEYED[prefix], key) if dot and key and prefix in _KEYED else None


def parse_sort(text: str) -> tuple[str, bool]:
    """Return the column, and True for the largest first, which a hyphen before it asks for. Raises UsageError."""
    column = column_name(text.removeprefix("-"))
    if column in _COUNTED:
        raise click.UsageError(f"--sort {text}: {column} is counted for the listed runs only; sort by another column")
    return column, text.startswith("-")


def parse_since(text: str, now: datetime, is_local: bool, option: str = "--since") -> datetime:
    """Return the time that `2d`, `90m` or an ISO time means, in naive UTC. Raises UsageError."""
    try:
        if text[-1:] in _UNITS:
            return now - timedelta(**{_UNITS[text[-1]]: float(text[:-1])})
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.astimezone() if is_local else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError) as error:
        example = "write a time as 2026-01-02 or 2026-01-02T15:00, or an age as 90m, 12h, 7d"
        raise click.UsageError(f"{option} {text!r} is no time; {example}") from error


def build_query(selection: Selection) -> tuple[str, dict[str, Any]]:
    """Return the query and its parameters. Its rows have the selected columns, and n_all, the number of matches.

    With `complete` a row also has `is_over`: False while a label runs.
    """
    params: dict[str, Any] = {"limit": selection.limit}
    join, order = _order(selection, params)
    where = " AND ".join(_conditions(selection, params)) or "true"
    tables, joins, selected = [], [], []
    keys: dict[str, list[str]] = {}  # by view, as parameters
    for number, column in enumerate(dict.fromkeys(selection.columns)):
        view_and_key = keyed(column)
        quoted = '"' + column.replace('"', '""') + '"'
        if view_and_key is not None:
            view, params[f"key{number}"] = view_and_key
            keys.setdefault(view, []).append(f"$key{number}")
            selected.append(f"of_{view}.values[$key{number}] AS {quoted}")
        elif column not in _COUNTED:
            selected.append(f"{_OF_VIEW[column]} AS {quoted}")
    for view, names in keys.items():  # once for all of its columns: run_summary reads the tallies of all runs
        tables.append(f"of_{view} AS ({_PAGE_VALUES.format(view=view, keys=', '.join(names))})")
        joins.append(f"LEFT JOIN of_{view} ON of_{view}.run_id = r.run_id")
    if set(_COUNTED) & set(selection.columns):
        tables += _COUNTS
        joins += ["LEFT JOIN counted c ON c.run_id = r.run_id", "LEFT JOIN still_open o ON o.run_id = r.run_id"]
        selected += ["c.pending", "coalesce(c.lost, 0) AS lost", "o.run_id IS NULL AS is_over"]
    if "duration_s" in (*selection.columns, selection.sort):
        params["now"] = selection.now
    counted = f"count(*) OVER () AS n_all, row_number() OVER (ORDER BY {order}) AS place"
    ranked = f"SELECT r.*, {counted}\nFROM runs r {join} WHERE {where} ORDER BY place LIMIT $limit"
    page = f"page AS MATERIALIZED (\n{ranked}\n)"
    query = (
        f"WITH {', '.join([page, *tables])}\nSELECT {', '.join([*selected, 'r.n_all'])}\nFROM page r {' '.join(joins)}"
    )
    return f"{query}\nORDER BY r.place", params


_COUNTS = [
    "counted AS (SELECT run_id, CASE WHEN count(pending) = count(*) THEN sum(pending)::BIGINT END AS pending, "
    "sum(lost)::BIGINT AS lost FROM completeness WHERE run_id IN (SELECT run_id FROM page) GROUP BY run_id)",
    "still_open AS (SELECT DISTINCT run_id FROM labels WHERE state = 'running' "
    "AND run_id IN (SELECT run_id FROM page))",
]


_PAGE_VALUES = """
    SELECT run_id, map_from_entries(list((key, value::VARCHAR))) AS values FROM {view}
    WHERE key IN ({keys}) AND run_id IN (SELECT run_id FROM page) GROUP BY run_id
"""


def _values(view: str, key: str) -> str:
    return f"SELECT run_id, any_value(value)::VARCHAR AS value FROM {view} WHERE key = {key}"


def _order(selection: Selection, params: dict[str, Any]) -> tuple[str, str]:
    """Return a join and the expressions to sort by. A missing value is last, in both directions; so is NaN."""
    direction = "DESC" if selection.descending else "ASC"
    newest = "r.created_at DESC NULLS LAST, r.run_id DESC"
    view_and_key = keyed(selection.sort)
    if view_and_key is None:
        if selection.sort == "created_at":
            return "", f"r.created_at {direction} NULLS LAST, r.run_id {direction}"
        return "", f"{_OF_VIEW[selection.sort]} {direction} NULLS LAST, {newest}"
    view, params["sort_key"] = view_and_key
    text = "(s.value::JSON->>'$')"
    number = f"nullif(TRY_CAST({text} AS DOUBLE), 'nan'::DOUBLE)"
    join = f"LEFT JOIN ({_values(view, '$sort_key')} GROUP BY ALL) s ON s.run_id = r.run_id"
    # safeguard: keyed-sort-by-number
    return join, f"{number} {direction} NULLS LAST, {text} {direction} NULLS LAST, {newest}"


def _conditions(selection: Selection, params: dict[str, Any]) -> list[str]:
    conditions = []
    for name, column in (("project", "project"), ("state", "state"), ("group", "run_group")):
        if (value := getattr(selection, name)) is not None:
            conditions.append(f"r.{column} = ${name}")
            params[name] = value
    if selection.since is not None:
        conditions.append("r.created_at >= $since::TIMESTAMP")
        params["since"] = selection.since
    for number, tag in enumerate(selection.tags):
        conditions.append(f"list_contains(r.tags, $tag{number})")
        params[f"tag{number}"] = tag
    searched = "r.run_id, r.project, r.name, r.run_group, r.job_type, array_to_string(r.tags, ' '), r.notes"
    for number, text in enumerate(selection.texts):
        conditions.append(f"contains(lower(concat_ws(' ', {searched})), lower($text{number}))")
        params[f"text{number}"] = text
    return conditions
