"""What differs between two runs: config, metrics at the same steps, time per phase, means of the machines."""

import math
from typing import Any

from chiplog_client.client import Client
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
# Attempts of a label follow one another: the newest value of a step has the highest (attempt, seq).
_ORDER = "attempt::HUGEINT * 9223372036854775808 + seq"
_TOTALS = f"""
SELECT key, count(*) AS labels, max(last_step) AS last_step, avg(last_value) AS final, min(min) AS min, max(max) AS max
FROM keys WHERE run_id = $run GROUP BY key ORDER BY starts_with(key, 'chiplog/'), key LIMIT {KEYS_MAX}
"""
# Of keys with infinite values: the rollups have no minimum and maximum of the others.
_FINITE = """
SELECT key, min(value) AS min, max(value) AS max FROM metrics
WHERE run_id = $run AND list_contains($keys::VARCHAR[], key) AND isfinite(value) GROUP BY key
"""
# The means over the labels at one step of each key. The range of steps lets DuckDB skip all others.
_AT_STEPS = f"""
SELECT key, avg(value) AS value FROM (
    SELECT m.key, m.label, arg_max(m.value, m.{_ORDER}) AS value
    FROM metrics m JOIN (SELECT unnest($keys::VARCHAR[]) AS key, unnest($steps::BIGINT[]) AS step) w
    ON w.key = m.key AND w.step = m.step
    WHERE m.run_id = $run AND m.step BETWEEN $low AND $high GROUP BY m.key, m.label
) GROUP BY key
"""
# For runs that log a key at different steps.
_COMMON = """
SELECT a.key, max(a.step) AS step
FROM (SELECT DISTINCT key, step FROM metrics WHERE run_id = $a AND list_contains($keys, key)) a
JOIN (SELECT DISTINCT key, step FROM metrics WHERE run_id = $b AND list_contains($keys, key)) b
ON b.key = a.key AND b.step = a.step GROUP BY a.key
"""
# A definition of a name wins over patterns, and a longer pattern over a shorter one.
_BEST = """
SELECT k.key, arg_max(d.summary, (d.name = k.key)::BIGINT * 1000000 + length(d.name)) AS best
FROM (SELECT unnest($keys::VARCHAR[]) AS key) k
JOIN metric_definitions d ON d.name = k.key OR k.key GLOB d.name
WHERE d.run_id IN ($a, $b) AND d.summary IN ('min', 'max') GROUP BY k.key
"""
# Seconds per step of the mean label: of all steps of all labels that had the phase.
_PHASES = """
SELECT phase, sum(seconds) / sum(n_steps) AS mean_s, sum(seconds) / count(DISTINCT label) AS label_s
FROM phase_times WHERE run_id = $run GROUP BY phase
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
        "phases": _joined("phase", *both(_PHASES)),
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
    keys = list(dict.fromkeys([*totals[0], *totals[1]]))
    in_both = [key for key in keys if key in totals[0] and key in totals[1]]
    steps = {key: min(found[key]["last_step"] for found in totals) for key in in_both}
    at = [_at_steps(client, run, steps) for run in (a, b)]
    # safeguard: same-step-compared
    if apart := [key for key in in_both if key not in at[0] or key not in at[1]]:
        common = client.sql(_COMMON, {"a": a, "b": b, "keys": apart}).rows()
        again = {row["key"]: row["step"] for row in common}
        steps = {key: step for key, step in steps.items() if key not in apart} | again
        at = [known | _at_steps(client, run, again) for known, run in zip(at, (a, b), strict=True)]
    rows = []
    for key in keys:
        row: dict[str, Any] = {"key": key, "step": steps.get(key)}
        for side, found, values in zip("ab", totals, at, strict=True):
            row[side] = values.get(key) if key in steps else None
            known = found.get(key, {})
            row |= {f"{side}_{name}": known.get(name) for name in ("last_step", "final", "min", "max", "labels")}
        rows.append(row)
    return rows


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


def _at_steps(client: Client, run: str, steps: dict[str, int]) -> dict[str, float]:
    if not steps:
        return {}
    params: dict[str, Any] = {"run": run, "keys": list(steps), "steps": list(steps.values())}
    params |= {"low": min(steps.values()), "high": max(steps.values())}
    return {row["key"]: row["value"] for row in client.sql(_AT_STEPS, params).rows()}


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
