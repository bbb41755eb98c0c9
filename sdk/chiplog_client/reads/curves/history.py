"""The curves of a run as a table without SQL: a row for each label and step, a column for each metric."""

import os
from collections.abc import Sequence
from typing import Any

from chiplog_client.client import Client, connect
from chiplog_client.nearest_names import KNOWN_MAX, unknown_name
from chiplog_client.reads.parameters import quoted_name, require_positive
from chiplog_client.results.result import QueryError, Result

_KEYS_MAX = 100  # columns of a table for which no keys were given
_STEPS = """
SELECT s.label, s.step, {columns} FROM pivot_steps($run, $keys) s {where} GROUP BY s.label, s.step
ORDER BY s.label, s.step
"""
_BUCKETS = """
SELECT s.label, s.step, {columns} FROM downsample($run, $keys, points := $points) s {where} GROUP BY s.label, s.step
ORDER BY s.label, s.step
"""


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
        require_positive("points", points)
        params["points"] = points
        value = "arg_max(coalesce(s.mean, 'nan'), s.attempt) FILTER (s.key = $key{0})"
    columns = [f"{value.format(number)} AS {quoted_name(_column_of(name))}" for number, name in enumerate(names)]
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


def _column_of(name: str) -> str:
    """Return the column of a metric. It differs from the columns that each history has."""
    return f"metric.{name}" if name in ("label", "step") else name
