"""Tables about runs without SQL: runs beside each other, and the curves of a run with a column per key."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from chiplog_client.client import Client, connect
from chiplog_client.nearest_names import KNOWN_MAX, unknown_name
from chiplog_client.results.result import QueryError, Result
from chiplog_schemas.interrupts import handlers_held

_MAPS = ("config", "summary")
_RUNS = """
WITH page AS MATERIALIZED (
    FROM runs {where} ORDER BY created_at DESC NULLS LAST, run_id DESC LIMIT $limit
), configs AS (
    SELECT run_id, map_from_entries(list((key, value) ORDER BY key)) AS config
    FROM config WHERE run_id IN (SELECT run_id FROM page) GROUP BY run_id
), said AS (
    SELECT DISTINCT run_id, key FROM reads.set_summaries WHERE run_id IN (SELECT run_id FROM page)
), summaries AS (
    -- A computed number that JSON lacks is a text in run_summary; here it is as Python's json reads and writes it.
    SELECT s.run_id, map_from_entries(list((s.key, CASE
               WHEN o.key IS NOT NULL THEN s.value::VARCHAR
               WHEN s.value->>'$' = 'nan' THEN 'NaN' WHEN s.value->>'$' = 'inf' THEN 'Infinity'
               WHEN s.value->>'$' = '-inf' THEN '-Infinity' ELSE s.value::VARCHAR END) ORDER BY s.key)) AS summary
    FROM run_summary s LEFT JOIN said o ON o.run_id = s.run_id AND o.key = s.key
    WHERE s.run_id IN (SELECT run_id FROM page) GROUP BY s.run_id
)
SELECT p.*, coalesce(c.config, MAP {{}}::MAP(VARCHAR, JSON)) AS config,
       coalesce(s.summary, MAP {{}}::MAP(VARCHAR, VARCHAR)) AS summary
FROM page p LEFT JOIN configs c ON c.run_id = p.run_id LEFT JOIN summaries s ON s.run_id = p.run_id
ORDER BY p.created_at DESC NULLS LAST, p.run_id DESC
"""
_STEPS = """
SELECT s.label, s.step, {columns} FROM pivot_steps($run, $keys) s {where} GROUP BY s.label, s.step
ORDER BY s.label, s.step
"""
_BUCKETS = """
SELECT s.label, s.step, {columns} FROM downsample($run, $keys, points := $points) s {where} GROUP BY s.label, s.step
ORDER BY s.label, s.step
"""


class RunTable(Result):
    """A row per run. `config` and `summary` are dicts in rows, and a column per key in `df()`."""

    def __init__(self, result: Result) -> None:
        self.columns = result.columns
        self._table = result._table

    def _values(self) -> list[Sequence[Any]]:
        columns = super()._values()
        for number, name in enumerate(self.columns):
            if name in _MAPS:
                columns[number] = [_decoded(values) for values in columns[number]]
        return columns

    def df(self) -> Any:
        """Return a pandas.DataFrame with the columns config.KEY and summary.KEY. A key that a run lacks is missing.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        parts = [super().df().drop(columns=list(_MAPS))]
        with handlers_held():
            columns = dict(zip(self.columns, self._values(), strict=True))
            for name in _MAPS:
                keys = sorted({key for values in columns[name] for key in values})
                keyed = {f"{name}.{key}": [values.get(key) for values in columns[name]] for key in keys}
                parts.append(pandas.DataFrame(keyed, index=parts[0].index))
            return pandas.concat(parts, axis=1)


_KEYS_MAX = 100  # columns of a table for which no keys were given


def runs(
    project: str | None = None,
    *,
    state: str | None = None,
    tags: str | Sequence[str] | None = None,
    limit: int = 1_000,
    url: str | None = None,
    dir: str | os.PathLike[str] | None = None,
) -> Result:
    """Return a table with one row per run, the newest first: the columns of the view `runs`, `config` and `summary`.

    `rows()` has config and summary as dicts of Python values. `df()` has a column for each key: config.KEY and
    summary.KEY. A computed number of the summary that is not finite is a float; a text that a label set stays a text.

    Args:
        project: Only runs of this project.
        state: Only runs in this state: running, finished, failed or crashed.
        tags: Only runs with this tag, or with all of these.
        limit: At most so many runs.
        url: The collector's address, as of `connect`.
        dir: A CHIPLOG_DIR, as of `connect`.

    Returns:
        A Result. Without a matching run it has no rows.

    Raises:
        NoDataError: Nothing has been recorded there.
        QueryError: The query has no result, or `limit` is less than 1; `kind` says why.
        ValueError: The address is malformed, or its keys are missing.

    Examples:
        >>> chiplog.runs("gpt", state="finished").df()[["run_id", "config.lr", "summary.train/loss"]]
    """
    _require_positive("limit", limit)
    conditions, params = [], dict[str, Any](limit=limit)
    for name, value in (("project", project), ("state", state)):
        if value is not None:
            conditions.append(f"{name} = ${name}")
            params[name] = value
    for number, tag in enumerate([tags] if isinstance(tags, str) else tags or ()):
        conditions.append(f"list_contains(tags, $tag{number})")
        params[f"tag{number}"] = tag
    query = _RUNS.format(where=f"WHERE {' AND '.join(conditions)}" if conditions else "")
    with connect(url, dir=dir) as client:
        return RunTable(client.sql(query, params))


def runs_by_id(client: Client, run_ids: Sequence[str]) -> Result:
    """Return the rows of `runs` for these runs."""
    query = _RUNS.format(where="WHERE list_contains($ids, run_id)")
    return RunTable(client.sql(query, {"ids": list(run_ids), "limit": len(run_ids)}))


def run_history(
    run: str,
    keys: str | Sequence[str] | None = None,
    *,
    points: int | None = None,
    label: str | None = None,
    url: str | None = None,
    dir: str | os.PathLike[str] | None = None,
) -> Result:
    """Return metrics of a run by label and step: the columns `label`, `step`, and one for each key.

    The column of a metric has its name. Only metrics that are named `label` or `step` have the columns `metric.label`
    and `metric.step`. A value counts as in SQL: the last one of the label's newest attempt that logged the step. A
    label that did not log a key at a step has None there.

    Args:
        run: A run ID.
        keys: One metric, or several. Default: all metrics of the run, if they are not more than 100.
        points: About so many steps per label: `step` is then the first one of a bucket, and a value the mean in it of
            the newest attempt, NaN if it has no number. It costs about the same for any length. Without it all steps.
        label: Only this label.
        url: The collector's address, as of `connect`.
        dir: A CHIPLOG_DIR, as of `connect`.

    Returns:
        A Result, ordered by label and step. Without a logged key it has no rows.

    Raises:
        NoDataError: Nothing has been recorded there.
        QueryError: The run is unknown, there are no keys, or `points` is less than 1; or the query has no result, as
            when it has too many rows: give `points`. `kind` says why.
        ValueError: The address is malformed, or its keys are missing.

    Examples:
        >>> chiplog.run_history("gpt-1", ["train/loss", "val/loss"], points=500).df()
    """
    if keys is None:
        keys = _keys_of(run, url, dir)
    names = list(dict.fromkeys([keys] if isinstance(keys, str) else keys))
    if not names:
        raise QueryError("refused", "keys is empty; name at least one metric")
    params: dict[str, Any] = {"run": run, "keys": names}
    value = "any_value(s.metrics[$key{0}])"
    if points is not None:
        _require_positive("points", points)
        params["points"] = points
        value = "arg_max(coalesce(s.mean, 'nan'), s.attempt) FILTER (s.key = $key{0})"
    columns = [f"{value.format(number)} AS {_quoted(_column_of(name))}" for number, name in enumerate(names)]
    params |= {f"key{number}": name for number, name in enumerate(names)}
    where = ""
    if label is not None:
        where, params["label"] = "WHERE s.label = $label", label
    query = (_STEPS if points is None else _BUCKETS).replace("{where}", where).replace("{columns}", ", ".join(columns))
    with connect(url, dir=dir) as client:
        result = client.sql(query, params)
        if not result:
            _require_run(client, run)
        return result


def _decoded(values: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the values of JSON texts by key."""
    return {key: None if text is None else json.loads(text) for key, text in values.items()}


def _keys_of(run: str, url: str | None, dir: str | os.PathLike[str] | None) -> list[str]:
    """Return all metrics of a run; raise QueryError if there are none, or too many for one table."""
    with connect(url, dir=dir) as client:
        rows = client.sql("SELECT DISTINCT key FROM keys WHERE run_id = ? ORDER BY key", [run]).rows()
        if not rows:
            _require_run(client, run)
    names = [str(row["key"]) for row in rows]
    if not names or len(names) > _KEYS_MAX:
        some = f"{len(names)} metrics; give keys=, such as {names[0]!r}" if names else "no metrics"
        raise QueryError("refused", f"run {run} has {some}")
    return names


def _require_run(client: Client, run: str) -> None:
    if client.sql("FROM runs WHERE run_id = ?", [run]):
        return
    rows = client.sql(f"SELECT run_id FROM runs ORDER BY created_at DESC NULLS LAST LIMIT {KNOWN_MAX}").rows()
    known = [str(row["run_id"]) for row in rows]
    raise QueryError("refused", unknown_name("run", run, known, "chiplog.runs() lists all"))


def _require_positive(name: str, number: int) -> None:
    if number < 1:
        raise QueryError("refused", f"{name} is {number}; give 1 or more")


def _column_of(name: str) -> str:
    """Return the column of a metric. It differs from the columns that each history has."""
    return f"metric.{name}" if name in ("label", "step") else name


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
