"""Samples of GPUs, hosts and processes of a run, in buckets of time; and what went wrong with its GPUs."""

from collections import Counter
from typing import Any

from chiplog.page.curves import bucket_width
from chiplog.query.client import Client

LINES_MAX = 16  # above that a band over all devices
POINTS_MAX = 400
MARKS_MAX = 500
# They count since the boot, or since the driver was loaded: the curve is their growth per second.
COUNTERS = (
    *("system.paging.faults", "system.disk.io", "system.network", "system.pressure"),
    *("hw.energy", "hw.errors"),
)
_NAMES = """
SELECT name, count(DISTINCT (node, device)) AS n_devices, min(ts) AS first, max(ts) AS last FROM system
WHERE run_id = $run AND name <> 'hw.gpu.throttle.reasons' GROUP BY name ORDER BY name
"""
_BUCKETS = """
WITH sampled AS (
    SELECT node, device, epoch_us(ts) // {width_us} * {width_us} AS at_us, avg(value) AS mean, min(value) AS min,
           max(value) AS max, min(label) AS label, min(rank) AS rank
    FROM system WHERE run_id = $run AND name = $name
      AND ts >= make_timestamp({first_us}) AND ts < make_timestamp({last_us})
    GROUP BY ALL
)"""
_LEVELS = ", buckets AS (FROM sampled)"
_RATES = """, grown AS (
    SELECT * EXCLUDE (mean, min, max),
           (max - lag(max) OVER (PARTITION BY node, device ORDER BY at_us))
               / ((at_us - lag(at_us) OVER (PARTITION BY node, device ORDER BY at_us)) / 1e6) AS mean
    FROM sampled
), buckets AS (  -- a counter that falls began again
    SELECT *, mean AS min, mean AS max FROM grown WHERE mean >= 0
)"""
_COUNT = " SELECT count(DISTINCT (node, device)) AS n FROM buckets"
_LINES = " SELECT node, device, label, at_us, mean, min, max FROM buckets ORDER BY node, rank NULLS LAST, device, at_us"
_BAND = """
SELECT at_us, count(*) AS n_labels, min(min) AS min, median(mean) AS median, max(max) AS max,
       arg_min(coalesce(label, node), min) AS min_label, arg_max(coalesce(label, node), max) AS max_label
FROM buckets GROUP BY at_us ORDER BY at_us
"""
# A mark where throttling begins. Bits as in throttle_cost: an idle GPU and chosen clocks are no throttling.
_THROTTLES = f"""
SELECT ts, label, node, device, 'throttled' AS kind, NULL::INTEGER AS xid, reasons FROM (
    SELECT ts, label, node, device, value::BIGINT & 252 AS reasons,
           lag(value::BIGINT & 252) OVER (PARTITION BY label, node, device ORDER BY ts) AS earlier
    FROM system WHERE run_id = $run AND name = 'hw.gpu.throttle.reasons'
) WHERE reasons <> 0 AND coalesce(earlier, 0) = 0 ORDER BY ts LIMIT {MARKS_MAX}
"""
_EVENTS = f"""
SELECT ts, label, node, device, kind, xid, message FROM gpu_events WHERE run_id = $run ORDER BY ts LIMIT {MARKS_MAX}
"""
_REASONS = {
    4: "power cap",
    8: "slowdown by hardware",
    16: "sync boost",
    32: "too hot (driver)",
    64: "too hot (hardware)",
    128: "power brake",
}


def read_names(client: Client, run: str) -> dict[str, Any]:
    """Return `names` with the number of devices and the span of each, and `marks`: throttling and events of GPUs.

    Raises:
        QueryError: A query has no result.
    """
    marks = client.sql(_EVENTS, {"run": run}).rows()
    for row in client.sql(_THROTTLES, {"run": run}).rows():
        reasons = row.pop("reasons")
        words = ", ".join(text for bit, text in _REASONS.items() if reasons & bit)
        marks.append({**row, "message": f"{row['device']} is throttled: {words}"})
    marks.sort(key=lambda mark: mark["ts"])
    return {"names": client.sql(_NAMES, {"run": run}).rows(), "marks": marks[:MARKS_MAX]}


def read_system_curve(client: Client, run: str, name: str, first_us: int, last_us: int, points: int) -> dict[str, Any]:
    """Return one name in buckets of time, in the form of `read_curve`, with a line for each device, or a band.

    Args:
        client: The collector.
        run: The run.
        name: Such as hw.gpu.utilization.
        first_us: The first time, in µs since 1970.
        last_us: The end, exclusive.
        points: The most buckets.

    Raises:
        QueryError: A query has no result.
    """
    width_s = bucket_width(max(1, -(-(last_us - first_us) // 1_000_000)), max(points - 1, 1))
    width_us = width_s * 1_000_000
    is_rate = name.startswith(COUNTERS)
    bounds = {"width_us": width_us, "first_us": first_us // width_us * width_us, "last_us": last_us}
    text = _BUCKETS.format(**bounds) + (_RATES if is_rate else _LEVELS)
    named = {"run": run, "name": name}
    [counted] = client.sql(text + _COUNT, named).rows()
    head = {"key": name, "is_rate": is_rate, "width_s": width_s, "n_labels": counted["n"]}
    is_band = counted["n"] > LINES_MAX
    rows = client.sql(text + (_BAND if is_band else _LINES), named).rows()
    if not rows:
        return head | {"kind": "none", "step": [], "ts": []}
    return head | (_band(rows) if is_band else _lines(rows))


def _band(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("n_labels", "min", "median", "max", "min_label", "max_label")
    times = [row["at_us"] / 1000 for row in rows]
    return {"kind": "band", "step": times, "ts": times, **{name: [row[name] for row in rows] for name in names}}


def _lines(rows: list[dict[str, Any]]) -> dict[str, Any]:
    times = sorted({row["at_us"] for row in rows})
    places = {at: place for place, at in enumerate(times)}
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(
            (row["node"], row["device"]),
            {"label": _owner(row), "mean": [None] * len(times), "min": [None] * len(times), "max": [None] * len(times)},
        )
        for name in ("mean", "min", "max"):
            line[name][places[row["at_us"]]] = row[name]
    counts = Counter(line["label"] for line in lines.values())
    for (_, device), line in lines.items():
        if counts[line["label"]] > 1 and device:
            line["label"] += f" {device}"
    ms = [at / 1000 for at in times]
    return {"kind": "lines", "step": ms, "ts": ms, "lines": list(lines.values())}


def _owner(row: dict[str, Any]) -> str:
    """Return the label of a GPU or a process; the node of what belongs to a host."""
    is_of_label = row["device"].startswith(("GPU-", "MIG-", "pid:"))
    return str(row["label"] if is_of_label else row["node"])


def throttle_text(reasons: int) -> str:
    """Return why a GPU is throttled, from the bits of hw.gpu.throttle.reasons; "" if it is not."""
    return ", ".join(text for bit, text in _REASONS.items() if reasons & bit)
