"""The table of runs without SQL: a row for each run, with its config and summary."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from chiplog_client.client import Client, connect
from chiplog_client.reads.parameters import require_positive
from chiplog_client.reads.runs.runs_query import MAPS, VIEW_COLUMNS, RunsRequest, runs_sql
from chiplog_client.results.result import Result
from chiplog_schemas.interrupts import handlers_held

_COLUMNS = (*VIEW_COLUMNS, *MAPS)


class RunTable(Result):
    """A row per run. `config` and `summary` are dicts in rows, and a column per key in `df()`."""

    def __init__(self, result: Result) -> None:
        self.columns = result.columns
        self._table = result._table

    def _values(self) -> list[Sequence[Any]]:
        columns = super()._values()
        for number, name in enumerate(self.columns):
            if name in MAPS:
                columns[number] = [_decoded(values) for values in columns[number]]
        return columns

    def df(self) -> Any:
        """Return a pandas.DataFrame with the columns config.KEY and summary.KEY. A key that a run lacks is missing.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        parts = [super().df().drop(columns=list(MAPS))]
        with handlers_held():
            columns = dict(zip(self.columns, self._values(), strict=True))
            for name in MAPS:
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
    chosen = [tags] if isinstance(tags, str) else tags or ()
    request = RunsRequest(_COLUMNS, project=project, state=state, tags=chosen, limit=limit)
    with connect(url, dir=dir) as client:
        return RunTable(client.sql(*runs_sql(request)))


def runs_by_id(client: Client, run_ids: Sequence[str]) -> Result:
    """Return the rows of `runs` for these runs."""
    return RunTable(client.sql(*runs_sql(RunsRequest(_COLUMNS, ids=run_ids, limit=len(run_ids)))))


def _decoded(values: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the values of JSON texts by key."""
    return {key: None if text is None else json.loads(text) for key, text in values.items()}
