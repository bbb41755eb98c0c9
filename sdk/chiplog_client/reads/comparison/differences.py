"""What differs between two runs: config, metrics at the same steps, time per phase, means of the machines."""

import math
from collections.abc import Iterator
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.comparison.phase_means import read_phase_means
from chiplog_client.reads.comparison.same_step import read_same_step
from chiplog_client.results.json_texts import decoded

KEYS_MAX = 10_000  # as many as a run may have
SYSTEM_NAMES = (
    "hw.gpu.utilization",
    "hw.gpu.memory.usage",
    "hw.power",
    "system.cpu.utilization",
    "system.memory.usage",
    "process.cpu.utilization",
    "process.memory.usage",
)

_RUN = "SELECT * FROM runs WHERE run_id = $run"
_CONFIG = "SELECT key, value FROM config WHERE run_id = $run ORDER BY key"
_TOTALS = f"""
SELECT key, count(*) AS labels, max(last_step) AS last_step, avg(last_value) AS final, min(min) AS min, max(max) AS max
FROM keys WHERE run_id = $run GROUP BY key ORDER BY starts_with(key, 'chiplog/'), key LIMIT {KEYS_MAX}
"""
# Of keys with infinite values: the rollups have no minimum and maximum of the others.
_FINITE = """
SELECT key, min(value) AS min, max(value) AS max FROM metrics
WHERE run_id = $run AND list_contains($keys::VARCHAR[], key) AND isfinite(value) GROUP BY key
"""
# A definition of a name wins over patterns, and a longer pattern over a shorter one.
_BEST = """
SELECT k.key, arg_max(d.summary, (d.name = k.key)::BIGINT * 1000000 + length(d.name)) AS best
FROM (SELECT unnest($keys::VARCHAR[]) AS key) k
JOIN metric_definitions d ON d.name = k.key OR k.key GLOB d.name
WHERE d.run_id IN ($a, $b) AND d.summary IN ('min', 'max') GROUP BY k.key
"""
_SYSTEM = f"""
SELECT name, avg(value) AS mean FROM system WHERE run_id = $run AND name IN {SYSTEM_NAMES} GROUP BY name
"""
_STEPS = "SELECT min(first_step) AS first_step, max(last_step) AS last_step FROM keys WHERE run_id = $run"


def compare_runs(client: Client, a: str, b: str, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what `chiplog compare` shows. keys: only these metrics."""

    def both(query: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return client.sql(query, {"run": a}).rows(), client.sql(query, {"run": b}).rows()

    metrics = [row for row in _metrics(client, a, b) if not keys or row["key"] in keys]
    names = [row["key"] for row in metrics]
    best = {row["key"]: row["best"] for row in client.sql(_BEST, {"keys": names, "a": a, "b": b}).rows()}
    for row in metrics:
        row["best"] = best.get(row["key"], "min")
        row["a_best"], row["b_best"] = row[f"a_{row['best']}"], row[f"b_{row['best']}"]
    configs = [{row["key"]: decoded(row["value"]) for row in rows} for rows in both(_CONFIG)]
    return {
        "runs": {
            name: run[0] | steps[0] for name, run, steps in zip(("a", "b"), both(_RUN), both(_STEPS), strict=True)
        },
        "config": _config_differences(*configs),
        "config_equal": sum(key in configs[1] and configs[1][key] == value for key, value in configs[0].items()),
        "metrics": metrics,
        "phases": _joined("phase", *_phases(client, a, b)),
        "system": _joined("name", *both(_SYSTEM)),
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


def _metrics(client: Client, a: str, b: str) -> list[dict[str, Any]]:
    """Return one row per key of either run: at the last common step, final, lowest and highest."""
    totals = [_totals(client, run) for run in (a, b)]
    same = {row["key"]: row for row in read_same_step(client, [a, b], keys_max=KEYS_MAX, steps_back=None)}
    rows = []
    for key in dict.fromkeys([*totals[0], *totals[1]]):
        at = same.get(key, {"step": None, "values": (None, None)})
        row: dict[str, Any] = {"key": key, "step": at["step"]}
        for side, found, value in zip("ab", totals, at["values"], strict=True):
            row[side] = value
            known = found.get(key, {})
            row |= {f"{side}_{name}": known.get(name) for name in ("last_step", "final", "min", "max", "labels")}
        rows.append(row)
    return rows


def _phases(client: Client, *runs: str) -> Iterator[list[dict[str, Any]]]:
    found = read_phase_means(client, runs)
    for run in runs:
        rows = [row for row in found if row["run_id"] == run]
        yield [{"phase": row["phase"], "mean_s": row["mean_s"], "label_s": row["label_s"]} for row in rows]


def _totals(client: Client, run: str) -> dict[str, dict[str, Any]]:
    """Return what is known of each key without reading its values; minimum and maximum are of finite values."""
    totals = {row.pop("key"): row for row in client.sql(_TOTALS, {"run": run}).rows()}
    infinite = [
        key for key, row in totals.items() if any(row[name] in (math.inf, -math.inf) for name in ("min", "max"))
    ]
    if infinite:
        finite = {row.pop("key"): row for row in client.sql(_FINITE, {"run": run, "keys": infinite}).rows()}
        for key in infinite:
            totals[key] |= finite.get(key, {"min": None, "max": None})
    return totals


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
