"""The table of runs without SQL: a row for each run, with its config and summary."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from chiplog_client.client import Client, connect
from chiplog_client.reads.parameters import require_positive
from chiplog_client.results.result import Result
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
    require_positive("limit", limit)
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


def _decoded(values: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the values of JSON texts by key."""
    return {key: None if text is None else json.loads(text) for key, text in values.items()}
