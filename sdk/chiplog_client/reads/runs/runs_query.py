"""The table of runs: which ones, in which order, with the columns that are asked for and at no cost of others.

`chiplog runs`, the page's list and `chiplog.runs` ask this one question and show the answer in their own way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.parameters import quoted_name
from chiplog_client.results.json_texts import decoded

VIEW_COLUMNS = (  # of the view `runs`, in its order
    *("run_id", "project", "name", "run_group", "job_type", "tags", "notes", "state", "exit_code", "created_at"),
    *("ended_at", "primary_label", "n_labels", "n_attempts", "n_failed", "n_running"),
)
DURATION = "duration_s"
COUNTED = ("pending", "lost", "is_over")  # of the returned runs only: it is no column to sort by
PLACES = ("collectors", "seen_at")  # with a store; likewise
MAPS = {"config": "config", "summary": "run_summary"}  # column with all values, and prefix of one: config.KEY -> view
_DURATION = """
CASE WHEN r.ended_at IS NOT NULL OR r.state = 'running'
THEN greatest(epoch(coalesce(r.ended_at, $now::TIMESTAMP) - r.created_at), 0) END
"""
_PENDING = """
    SELECT run_id, CASE WHEN count(pending) = count(*) THEN sum(pending)::BIGINT END AS pending,
           sum(lost)::BIGINT AS lost
    FROM completeness WHERE run_id IN (SELECT run_id FROM page) GROUP BY run_id
"""
_OPEN = """
    SELECT DISTINCT run_id FROM labels WHERE state IN ('running', 'unknown') AND run_id IN (SELECT run_id FROM page)
"""
# Of runs that other collectors have, alone or too.
_PLACES = """
    SELECT run_id, min(seen_at) AS seen_at,
           list(CASE WHEN is_here THEN 'here' ELSE collector END ORDER BY is_here DESC, collector) AS collectors
    FROM run_places WHERE run_id IN (SELECT run_id FROM page) GROUP BY run_id HAVING NOT bool_and(is_here)
"""
_CONFIG = """
    SELECT run_id, map_from_entries(list((key, value) ORDER BY key)) AS values
    FROM config WHERE run_id IN (SELECT run_id FROM page) {keys} GROUP BY run_id
"""
# A computed number that JSON lacks is a text in run_summary. Here it is as Python's json reads and writes it, so that a
# text that a label set stays a text.
_SUMMARY = """
    SELECT s.run_id, map_from_entries(list((s.key, CASE
               WHEN o.key IS NOT NULL THEN s.value::VARCHAR
               WHEN s.value->>'$' = 'nan' THEN 'NaN' WHEN s.value->>'$' = 'inf' THEN 'Infinity'
               WHEN s.value->>'$' = '-inf' THEN '-Infinity' ELSE s.value::VARCHAR END) ORDER BY s.key)) AS values
    FROM run_summary s LEFT JOIN (
        SELECT DISTINCT run_id, key FROM reads.set_summaries WHERE run_id IN (SELECT run_id FROM page) {keys}
    ) o ON o.run_id = s.run_id AND o.key = s.key
    WHERE s.run_id IN (SELECT run_id FROM page) {s_keys} GROUP BY s.run_id
"""
_TYPES = {"config": "JSON", "summary": "VARCHAR"}  # of the values of a map


@dataclass(frozen=True, slots=True)
class RunsRequest:
    """Which runs: those that match all of this, in this order.

    Attributes:
        columns: VIEW_COLUMNS, DURATION, COUNTED, PLACES; `config` and `summary`, maps of all values; `config.KEY` and
            `summary.KEY`, one value of each.
        project: Only runs of this project.
        state: Only runs in this state.
        group: Only runs of this group.
        tags: Only runs with all of these.
        texts: Only runs with each of these in their ID, project, name, group, job type, tags or notes.
        since: Only runs created since then, in naive UTC.
        ids: Only these runs; None for any.
        sort: A column except COUNTED, PLACES and maps. Missing values are last, and so is NaN.
        descending: The largest first.
        limit: Runs at most.
        now: Until when runs last that have not ended, in naive UTC.
        has_total: Each row has `n_all`, the number of all runs that match.
    """

    columns: Sequence[str]
    project: str | None = None
    state: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()
    texts: Sequence[str] = ()
    since: datetime | None = None
    ids: Sequence[str] | None = None
    sort: str = "created_at"
    descending: bool = True
    limit: int = 50
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))
    has_total: bool = False

    @property
    def is_filtered(self) -> bool:
        """Return True if some runs may not match."""
        return self.ids is not None or any((self.project, self.state, self.group, self.tags, self.texts, self.since))


def read_runs(client: Client, request: RunsRequest) -> list[dict[str, Any]]:
    """Return a row for each run, with decoded values of `config.KEY` and `summary.KEY`: None for a key that it lacks.

    `pending` is None if it is unknown. `is_over` is False while a label runs. `collectors` has those of a run of which
    another collector has a part, with `here` for the one that answers; `seen_at` is up to when such parts are known.

    Raises:
        QueryError: The query has no result.
    """
    rows = client.sql(*runs_sql(request)).rows()
    for column in request.columns:
        if keyed(column) is not None:
            for row in rows:
                row[column] = decoded(row[column])
    return rows


def keyed(column: str) -> tuple[str, str] | None:
    """Return the map and the key of a column such as config.lr; None for another."""
    prefix, dot, key = column.partition(".")
    return (prefix, key) if dot and prefix in MAPS else None


def runs_sql(request: RunsRequest) -> tuple[str, dict[str, Any]]:
    """Return the query and its parameters. Values of maps and of keys are JSON texts."""
    params: dict[str, Any] = {"limit": request.limit}
    join, order = _order(request, params)
    where = " AND ".join(_conditions(request, params)) or "true"
    columns = list(dict.fromkeys(request.columns))
    keys = {name: {} for name in MAPS}  # type: dict[str, dict[str, str]]
    for number, column in enumerate(columns):
        if (found := keyed(column)) is not None:
            name, params[f"key{number}"] = found
            keys[name][column] = f"$key{number}"
    selected = [_selected(column, keys) for column in columns]
    tables, joins = _maps(columns, keys)
    if {"pending", "lost"} & set(columns):
        tables.append(f"counted AS ({_PENDING})")
        joins.append("LEFT JOIN counted c ON c.run_id = r.run_id")
    if "is_over" in columns:
        tables.append(f"still_open AS ({_OPEN})")
        joins.append("LEFT JOIN still_open o ON o.run_id = r.run_id")
    if set(PLACES) & set(columns):
        tables.append(f"places AS ({_PLACES})")
        joins.append("LEFT JOIN places p ON p.run_id = r.run_id")
    if DURATION in (*columns, request.sort):
        params["now"] = request.now
    counted = ", count(*) OVER () AS n_all" if request.has_total else ""
    page = (
        f"SELECT r.*, row_number() OVER (ORDER BY {order}) AS place{counted}\n"
        f"FROM runs r {join} WHERE {where} ORDER BY place LIMIT $limit"
    )
    query = (
        f"WITH {', '.join([f'page AS MATERIALIZED ({page})', *tables])}\n"
        f"SELECT {', '.join([*selected, *['r.n_all'] * request.has_total])}\n"
        f"FROM page r {' '.join(joins)}\nORDER BY r.place"
    )
    return query, params


def _selected(column: str, keys: dict[str, dict[str, str]]) -> str:
    if (found := keyed(column)) is not None:
        return f"of_{found[0]}.values[{keys[found[0]][column]}]::VARCHAR AS {quoted_name(column)}"
    if column in MAPS:
        return f"coalesce(of_{column}.values, MAP {{}}::MAP(VARCHAR, {_TYPES[column]})) AS {column}"
    if column == DURATION:
        return f"{_DURATION} AS {DURATION}"
    if column in PLACES:
        return f"p.{column}"
    counted = {"pending": "c.pending", "lost": "coalesce(c.lost, 0) AS lost", "is_over": "o.run_id IS NULL AS is_over"}
    return counted.get(column) or f"r.{column}"


def _maps(columns: Sequence[str], keys: dict[str, dict[str, str]]) -> tuple[list[str], list[str]]:
    """Return a table of each map that is needed, with the wanted keys, and how it is joined.

    One of all columns: run_summary reads the tallies of all runs.
    """
    tables, joins = [], []
    for name, text in (("config", _CONFIG), ("summary", _SUMMARY)):
        if not keys[name] and name not in columns:
            continue
        wanted = f"key IN ({', '.join(keys[name].values())})"
        is_whole = name in columns
        table = text.format(keys="" if is_whole else f"AND {wanted}", s_keys="" if is_whole else f"AND s.{wanted}")
        tables.append(f"of_{name} AS ({table})")
        joins.append(f"LEFT JOIN of_{name} ON of_{name}.run_id = r.run_id")
    return tables, joins


def _order(request: RunsRequest, params: dict[str, Any]) -> tuple[str, str]:
    """Return a join and the expressions to sort by. A missing value is last, in both directions; so is NaN."""
    direction = "DESC" if request.descending else "ASC"
    newest = "r.created_at DESC NULLS LAST, r.run_id DESC"
    if request.sort == "created_at":
        return "", f"r.created_at {direction} NULLS LAST, r.run_id {direction}"
    found = keyed(request.sort)
    if found is None:
        value = _DURATION if request.sort == DURATION else f"r.{request.sort}"
        return "", f"{value} {direction} NULLS LAST, {newest}"
    name, params["sort_key"] = found
    values = f"SELECT run_id, any_value(value)::VARCHAR AS value FROM {MAPS[name]} WHERE key = $sort_key GROUP BY ALL"
    text = "(s.value::JSON->>'$')"
    number = f"nullif(TRY_CAST({text} AS DOUBLE), 'nan'::DOUBLE)"
    join = f"LEFT JOIN ({values}) s ON s.run_id = r.run_id"
    # safeguard: keyed-sort-by-number
    return join, f"{number} {direction} NULLS LAST, {text} {direction} NULLS LAST, {newest}"


def _conditions(request: RunsRequest, params: dict[str, Any]) -> Iterable[str]:
    for name, column in (("project", "project"), ("state", "state"), ("group", "run_group")):
        if (value := getattr(request, name)) is not None:
            params[name] = value
            yield f"r.{column} = ${name}"
    if request.ids is not None:
        params["ids"] = list(request.ids)
        yield "list_contains($ids::VARCHAR[], r.run_id)"
    if request.since is not None:
        params["since"] = request.since
        yield "r.created_at >= $since::TIMESTAMP"
    for number, tag in enumerate(request.tags):
        params[f"tag{number}"] = tag
        yield f"list_contains(r.tags, $tag{number})"
    searched = "r.run_id, r.project, r.name, r.run_group, r.job_type, array_to_string(r.tags, ' '), r.notes"
    for number, text in enumerate(request.texts):
        params[f"text{number}"] = text
        yield f"contains(lower(concat_ws(' ', {searched})), lower($text{number}))"
