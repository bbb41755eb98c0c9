"""What differs between two runs: config, metrics at the same steps, time per phase, means of the machines."""

import math
from collections.abc import Iterator
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.comparison.key_values import KEYS_MAX, read_key_values
from chiplog_client.reads.comparison.machine_means import read_machine_means
from chiplog_client.reads.comparison.phase_means import read_phase_means
from chiplog_client.reads.comparison.same_step import read_same_step
from chiplog_client.reads.parameters import STEP_MAX
from chiplog_client.results.json_texts import decoded

_RUN = "SELECT * FROM runs WHERE run_id = $run"
_CONFIG = "SELECT key, value FROM config WHERE run_id = $run ORDER BY key"
_STEPS = "SELECT min(first_step) AS first_step, max(last_step) AS last_step FROM keys WHERE run_id = $run"


def compare_runs(client: Client, a: str, b: str, keys: tuple[str, ...] = (), *, step: int = STEP_MAX) -> dict[str, Any]:
    """Return what `chiplog compare` shows.

    Args:
        client: The collector.
        a: ID of a run.
        b: ID of another one.
        keys: Only these metrics; all if empty.
        step: Of each metric the last common step until this one counts.

    Raises:
        QueryError: A query has no result.
    """

    def both(query: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return client.sql(query, {"run": a}).rows(), client.sql(query, {"run": b}).rows()

    metrics = [row for row in _metrics(client, a, b, step) if not keys or row["key"] in keys]
    configs = [{row["key"]: decoded(row["value"]) for row in rows} for rows in both(_CONFIG)]
    return {
        "runs": {
            name: run[0] | steps[0] for name, run, steps in zip(("a", "b"), both(_RUN), both(_STEPS), strict=True)
        },
        "config": _config_differences(*configs),
        "config_equal": sum(key in configs[1] and configs[1][key] == value for key, value in configs[0].items()),
        "metrics": metrics,
        "phases": _joined("phase", *_phases(client, a, b)),
        "system": _joined("name", *_machines(client, a, b)),
    }


PAIR_COLUMNS = ("kind", "key", "figure", "step", "a", "b", "change")
PAIR_TYPES = {"figure": "VARCHAR", "step": "BIGINT", "change": "DOUBLE"}
_FIGURES = {"phases": ("phase", "phase", ("mean_s", "label_s")), "system": ("machine", "name", ("mean",))}


def pairs_of(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return what `compare_runs` found as rows of PAIR_COLUMNS: each value of A beside that of B."""
    runs = found["runs"]
    pairs: list[tuple[Any, ...]] = [("run", name, None, None, runs["a"][name], runs["b"][name]) for name in runs["a"]]
    pairs += [("config", row["key"], None, None, row["a"], row["b"]) for row in found["config"]]
    for row in found["metrics"]:
        if row["step"] is not None:
            pairs.append(("metric", row["key"], "at_step", row["step"], row["a"], row["b"]))
        for figure in ("min", "max", "final", "last_step"):
            pairs.append(("metric", row["key"], figure, None, row[f"a_{figure}"], row[f"b_{figure}"]))
    for part, (kind, name, figures) in _FIGURES.items():
        for row in found[part]:
            pairs += [(kind, row[name], figure, None, row[f"a_{figure}"], row[f"b_{figure}"]) for figure in figures]
    return [(*pair, _change(*pair[-2:])) for pair in pairs]


def _change(a: Any, b: Any) -> float | None:
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (a, b))
    return float(b - a) if is_number and math.isfinite(a) and math.isfinite(b) else None


def _metrics(client: Client, a: str, b: str, step: int) -> list[dict[str, Any]]:
    """Return one row per key of either run: at the last common step, final, lowest, highest and best."""
    found = read_key_values(client, [a, b])
    totals = [{row["key"]: row for row in found if row["run_id"] == run} for run in (a, b)]
    same = {row["key"]: row for row in read_same_step(client, [a, b], step, keys_max=KEYS_MAX, steps_back=None)}
    best = {row["key"]: row["best"] for row in found}
    rows = []
    for key in dict.fromkeys([*totals[0], *totals[1]]):
        at = same.get(key, {"step": None, "values": (None, None)})
        row: dict[str, Any] = {"key": key, "step": at["step"]}
        for side, of_run, value in zip("ab", totals, at["values"], strict=True):
            row[side] = value
            known = of_run.get(key, {})
            row |= {f"{side}_{name}": known.get(name) for name in ("last_step", "final", "min", "max", "labels")}
        row["best"] = best[key]
        row |= {f"{side}_best": row[f"{side}_{best[key]}"] for side in "ab"}
        rows.append(row)
    return rows


def _phases(client: Client, *runs: str) -> Iterator[list[dict[str, Any]]]:
    found = read_phase_means(client, runs)
    for run in runs:
        rows = [row for row in found if row["run_id"] == run]
        yield [{"phase": row["phase"], "mean_s": row["mean_s"], "label_s": row["label_s"]} for row in rows]


def _machines(client: Client, *runs: str) -> Iterator[list[dict[str, Any]]]:
    found = read_machine_means(client, runs)
    for run in runs:
        yield [{"name": row["name"], "mean": row["mean"]} for row in found if row["run_id"] == run]


def _config_differences(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the keys whose values differ. in_a, in_b: whether the run has the key, for a value may be null."""
    return [
        {"key": key, "a": a.get(key), "b": b.get(key), "in_a": key in a, "in_b": key in b}
        for key in sorted(a.keys() | b.keys())
        if (key in a) != (key in b) or a.get(key) != b.get(key)
    ]


def _joined(name: str, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per name with the columns of both runs, in the order of A, then of B."""
    rows = [{row[name]: row for row in side} for side in (a, b)]
    columns = [column for column in (*a, *b)[0] if column != name] if a or b else []
    return [
        {name: key}
        | {
            f"{side}_{column}": found.get(key, {}).get(column)
            for column in columns
            for side, found in zip("ab", rows, strict=True)
        }
        for key in dict.fromkeys([*rows[0], *rows[1]])
    ]
