"""Metrics of several runs at the same step: of each metric the last step that all runs have which logged it."""

import math
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.parameters import STEP_MAX, STEP_MIN

KEYS_MAX = 2_000
ROUNDING = 1e-12  # means of equal values over different numbers of labels differ by less
STEPS_BACK_MAX = 20_000  # how far back a common step is searched for
_KEYS = """
SELECT key, count(DISTINCT run_id) AS n_runs, min(last_step) AS last_step FROM (
    SELECT run_id, key, max(last_step) AS last_step FROM keys
    WHERE list_contains($runs::VARCHAR[], run_id) AND first_step <= $step GROUP BY run_id, key
) GROUP BY key HAVING n_runs > 1 ORDER BY starts_with(key, 'chiplog/'), key LIMIT $keys_max
"""
# Attempts of a label follow one another: the newest value of a step has the highest (attempt, seq).
_VALUES = """
SELECT key, run_id, avg(value) AS value FROM (
    SELECT m.key, m.run_id, m.label, arg_max(m.value, m.attempt::HUGEINT * 9223372036854775808 + m.seq) AS value
    FROM metrics m JOIN (SELECT unnest($keys::VARCHAR[]) AS key, unnest($steps::BIGINT[]) AS step) w
    ON w.key = m.key AND w.step = m.step
    WHERE list_contains($runs::VARCHAR[], m.run_id) AND m.step BETWEEN $low AND $high GROUP BY ALL
) GROUP BY key, run_id
"""
_COMMON = """
SELECT key, max(step) AS step FROM (
    SELECT m.key, m.step, any_value(w.n_runs) AS n_runs
    FROM metrics m JOIN (
        SELECT unnest($keys::VARCHAR[]) AS key, unnest($starts::BIGINT[]) AS start, unnest($steps::BIGINT[]) AS step,
               unnest($n_runs::BIGINT[]) AS n_runs
    ) w ON w.key = m.key AND m.step BETWEEN w.start AND w.step
    WHERE list_contains($runs::VARCHAR[], m.run_id) AND m.step BETWEEN $low AND $high
    GROUP BY m.key, m.step HAVING count(DISTINCT m.run_id) = any_value(w.n_runs)
) GROUP BY key
"""
_Row = dict[str, Any]


def read_same_step(
    client: Client,
    runs: list[str],
    step: int = STEP_MAX,
    *,
    keys_max: int = KEYS_MAX,
    steps_back: int | None = STEPS_BACK_MAX,
) -> list[_Row]:
    """Return the metrics that two of these runs or more have logged until a step.

    Args:
        client: The collector.
        runs: IDs of different runs.
        step: Of each metric the last common step until this one counts.
        keys_max: Metrics at most.
        steps_back: How many steps before the last one a common step may be; None for any.

    Returns:
        For each its key, its step, and `values`: the mean over the labels of each run, in their order; None for a run
        that did not log it. `step` is None, and so are the values, without a common step among the last ones.

    Raises:
        QueryError: A query has no result.
    """
    rows = client.sql(_KEYS, {"runs": runs, "step": step, "keys_max": keys_max}).rows()
    for row in rows:
        row["step"] = min(row.pop("last_step"), step)
        row["values"] = [None] * len(runs)
    _fill(client, runs, rows)
    apart = [row for row in rows if sum(value is not None for value in row["values"]) < row["n_runs"]]
    if apart:  # safeguard: same-step-compared
        starts = [STEP_MIN if steps_back is None else max(row["step"] - steps_back, STEP_MIN) for row in apart]
        params = _params(runs, apart) | {"starts": starts, "low": min(starts)}
        params["n_runs"] = [row["n_runs"] for row in apart]
        common = {row["key"]: row["step"] for row in client.sql(_COMMON, params).rows()}
        for row in apart:
            row |= {"step": common.get(row["key"]), "values": [None] * len(runs)}
        _fill(client, runs, [row for row in apart if row["step"] is not None])
    return [
        {name: row[name] for name in ("key", "step", "values")} | {"is_same": _are_same(row["values"])} for row in rows
    ]


def _are_same(values: list[float | None]) -> bool:
    first = values[0]
    return first is not None and all(value is not None and is_same_number(value, first) for value in values)


def is_same_number(one: float, other: float) -> bool:
    """Return True if two numbers are the same, except for the rounding of their sums. NaN is the same as NaN."""
    return math.isclose(one, other, rel_tol=ROUNDING) or (math.isnan(one) and math.isnan(other))


def _fill(client: Client, runs: list[str], rows: list[_Row]) -> None:
    if not rows:
        return
    by_key = {row["key"]: row for row in rows}
    for found in client.sql(_VALUES, _params(runs, rows)).rows():
        by_key[found["key"]]["values"][runs.index(found["run_id"])] = found["value"]


def _params(runs: list[str], rows: list[_Row]) -> dict[str, Any]:
    steps = [row["step"] for row in rows]
    params: dict[str, Any] = {"runs": runs, "keys": [row["key"] for row in rows], "steps": steps}
    return params | {"low": min(steps), "high": max(steps)}
