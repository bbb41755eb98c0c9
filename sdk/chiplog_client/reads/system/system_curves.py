"""Samples of GPUs, hosts and processes of a run, in buckets of time or of steps; and what went wrong with its GPUs."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.curves import band_of, bucket_width, lines_of
from chiplog_client.reads.system.node_steps import progress_sql, read_step_span
from chiplog_client.reads.system.sample_names import is_counter, sample_name, sample_place
from chiplog_client.reads.system.throttling import (
    THROTTLE_COUNTERS,
    THROTTLED_SHARE_MIN,
    bits_sql,
    names_sql,
    throttle_text,
)

LINES_MAX = 16  # above that a band over all devices
POINTS_MAX = 400
MARKS_MAX = 500
# A counter that does not grow has the value 0, as a rate.
_NAMES = """
WITH devices AS (
    SELECT name, count(*) AS n, min(ts) AS first, max(ts) AS last, min(value) AS least, max(value) AS most
    FROM system WHERE run_id = $run AND name <> 'hw.gpu.throttle.reasons' GROUP BY name, node, device
)
SELECT name, sum(n)::BIGINT AS n, count(*) AS n_devices, min(first) AS first, max(last) AS last,
       max(most) AS most, bool_and(n > 1 AND least = most) AS is_still, min(least) = max(most) AS is_same
FROM devices GROUP BY name
"""
_TIMES = """
SELECT epoch_us(min(ts)) AS first_us, epoch_us(max(ts)) AS last_us FROM system
WHERE run_id = $run AND list_contains($names::VARCHAR[], name)
"""
_OWNED = "regexp_matches({}, '^(GPU-|MIG-|pid:)')"
# Each label with its nodes and GPUs. A label that moved to another node is there twice.
_LABELS = """
SELECT node, label, min(rank) AS rank,
       list(DISTINCT device ORDER BY device) FILTER (regexp_matches(device, '^(GPU-|MIG-)')) AS gpus
FROM reads.device_users WHERE run_id = $run GROUP BY node, label
ORDER BY min(rank) NULLS LAST, length(node), node, length(label), label
"""
# What belongs to the chosen labels and nodes: a label's GPUs and process, a node's host.
_CHOSEN = f"""
run_id = $run AND list_contains($names::VARCHAR[], name) AND (
    len($labels::VARCHAR[]) + len($nodes::VARCHAR[]) = 0 OR list_contains($nodes::VARCHAR[], node)
    OR {_OWNED.format("device")} AND list_contains($labels::VARCHAR[], label)
    OR NOT {_OWNED.format("device")} AND node IN (
        SELECT node FROM reads.device_users WHERE run_id = $run AND list_contains($labels::VARCHAR[], label)
    )
)"""
_BY_TIME = f"""
WITH placed AS (
    SELECT *, epoch_us(ts) // {{width}} * {{width}} AS place, NULL::BIGINT AS at_step FROM system
    WHERE {_CHOSEN} AND ts >= make_timestamp({{first}}) AND ts < make_timestamp({{last}})
)"""
# safeguard: sample-has-the-last-step
_BY_STEP = f"""
WITH {{progress}}, chosen AS (
    FROM system WHERE {_CHOSEN}
), placed AS (
    SELECT s.*, p.step - (p.step % {{width}} + {{width}}) % {{width}} AS place, p.step AS at_step
    FROM chosen s ASOF JOIN progress p ON s.node = p.node AND s.ts >= p.ts
    WHERE p.step >= {{first}} AND p.step <= {{last}}
)"""
_SAMPLED = """, sampled AS MATERIALIZED (
    SELECT name, node, device, place, avg(value) AS mean, min(value) AS min, max(value) AS max, min(label) AS label,
           min(rank) AS rank, min(epoch_us(ts)) AS first_us, max(epoch_us(ts)) AS last_us,
           arg_max(value, ts) AS last, arg_max(at_step, ts) AS last_step
    FROM placed GROUP BY name, node, device, place
)"""
# A counter is shown as its growth per second; one that falls began again.
_BUCKETS = """, grown AS (
    SELECT *, (max - lag(max) OVER earlier) / (nullif(last_us - lag(last_us) OVER earlier, 0) / 1e6) AS growth,
           list_contains($counters::VARCHAR[], name) AS is_rate
    FROM sampled WINDOW earlier AS (PARTITION BY name, node, device ORDER BY place)
), buckets AS MATERIALIZED (
    SELECT name, node, device, label, rank, place, first_us, CASE WHEN is_rate THEN growth ELSE mean END AS mean,
           CASE WHEN is_rate THEN growth ELSE min END AS min, CASE WHEN is_rate THEN growth ELSE max END AS max,
           CASE WHEN is_rate THEN growth ELSE last END AS last, last_step
    FROM grown WHERE NOT is_rate OR growth >= 0
)"""
# One query: the number of devices decides which half has rows. A row per device, or per band, with lists.
_RESULT = """
, counted AS (
    SELECT *, (SELECT count(DISTINCT (d.node, d.device)) FROM buckets d WHERE d.name = b.name) AS n FROM buckets b
), bands AS (
    SELECT name, any_value(n) AS n, place, min(first_us) AS first_us, median(mean) AS mean, min(min) AS min,
           max(max) AS max, median(last) AS last, min(last) AS last_min, max(last) AS last_max,
           max(last_step) AS last_step, count(*) AS n_present, arg_min(coalesce(label, node), min) AS min_label,
           arg_max(coalesce(label, node), max) AS max_label
    FROM counted WHERE n > $lines_max GROUP BY name, place
)
SELECT name, any_value(n) AS n, node, device, arg_min(label, place) AS label, min(rank) AS rank, {lists},
       NULL AS last_min, NULL AS last_max, NULL AS n_present, NULL AS min_label, NULL AS max_label
FROM counted WHERE n <= $lines_max GROUP BY name, node, device
UNION ALL
SELECT name, any_value(n), NULL, NULL, NULL, NULL, {lists}, arg_max(last_min, place), arg_max(last_max, place),
       list(n_present ORDER BY place),
       list(min_label ORDER BY place), list(max_label ORDER BY place)
FROM bands GROUP BY name
ORDER BY name, length(node), node, rank NULLS LAST, length(device), device
""".format(
    lists="list(place ORDER BY place) AS step, list(first_us / 1e3 ORDER BY place) AS ts, "
    "list(min ORDER BY place) AS min, list(mean ORDER BY place) AS mean, list(max ORDER BY place) AS max, "
    "arg_max(last, place) AS last, arg_max(last_step, place) AS last_step"
)
# A mark where throttling begins, as in throttle_cost: where the device's counter of a reason grows by more than 1 % of
# the time, else by the bits; an idle GPU and chosen clocks are no throttling. Of too many marks all events are kept
# first, then the newest throttling.
# safeguard: marks-by-counters
_MARKS = f"""
WITH {{progress}}, bits(name, bit) AS (
    VALUES {bits_sql(THROTTLE_COUNTERS)}
), times AS (
    SELECT ts, label, node, device, name, value FROM system
    WHERE run_id = $run AND name IN ({names_sql(THROTTLE_COUNTERS)})
), counters AS MATERIALIZED (
    SELECT label, node, device, name, any_value(bit) AS bit, max(value) > min(value) AS has_grown,
           row_number() OVER () AS id
    FROM times JOIN bits USING (name) GROUP BY label, node, device, name
), grown AS (
    SELECT t.ts, c.id, t.value - lag(t.value) OVER of_counter AS growth,
           lag(t.value) OVER of_counter - lag(t.value, 2) OVER of_counter AS growth_before,
           epoch(t.ts) - epoch(lag(t.ts) OVER of_counter) AS seconds,
           epoch(lag(t.ts) OVER of_counter) - epoch(lag(t.ts, 2) OVER of_counter) AS seconds_before
    FROM times t JOIN counters c USING (label, node, device, name) WHERE c.has_grown
    WINDOW of_counter AS (PARTITION BY c.id ORDER BY t.ts)
), masks AS (
    SELECT s.ts, s.label, s.node, s.device, value::BIGINT & 252 & ~coalesce(c.bits, 0) AS reasons
    FROM system s LEFT JOIN (SELECT label, node, device, bit_or(bit) AS bits FROM counters GROUP BY ALL) c
        USING (label, node, device)
    WHERE s.run_id = $run AND s.name = 'hw.gpu.throttle.reasons'
), begun AS (
    SELECT ts, label, node, device, reasons FROM masks
    QUALIFY reasons <> 0 AND coalesce(lag(reasons) OVER (PARTITION BY label, node, device ORDER BY ts), 0) = 0
    UNION ALL
    SELECT g.ts, c.label, c.node, c.device, c.bit FROM grown g JOIN counters c USING (id)
    WHERE growth > {THROTTLED_SHARE_MIN} * seconds
      AND NOT coalesce(growth_before > {THROTTLED_SHARE_MIN} * seconds_before, false)
), marks AS (
    SELECT ts, label, node, device, 'throttled' AS kind, 'info' AS level, NULL::INTEGER AS xid, NULL AS message,
           bit_or(reasons) AS reasons
    FROM begun GROUP BY ts, label, node, device
    UNION ALL
    SELECT ts, label, node, device, kind, level, xid, message, 0 FROM reads.gpu_events WHERE run_id = $run
), kept AS (
    SELECT *, count(*) OVER () AS n_marks FROM marks
    ORDER BY kind = 'throttled', ts DESC, device, kind LIMIT {MARKS_MAX}
)
SELECT m.*, p.step FROM kept m ASOF LEFT JOIN progress p ON m.node = p.node AND m.ts >= p.ts
ORDER BY m.ts, m.device, m.kind
"""
# The step of an event is that of each label which used the GPU, as gpu_events has it; that of throttling the node's.
_EVENT_STEPS = """
SELECT ts, label, node, device, kind, step FROM gpu_events
WHERE run_id = $run AND ts BETWEEN make_timestamp($first) AND make_timestamp($last)
"""
_EVENTS = {
    "gpu.lost": "lost",
    "gpu.back": "back",
    "gpu.replaced": "replaced",
    "gpu.reset": "reset",
    "gpu.driver_unbind": "driver unloaded",
    "gpu.ecc_uncorrected": "memory error",
    "gpu.row_remap_pending": "asks for a reset",
    "gpu.row_remap_failure": "row not remapped",
    "gpu.recovery_action": "asks for recovery",
    "device_stale": "no answer",
}


@dataclass(frozen=True)
class SystemRequest:
    """What to read.

    Attributes:
        run: ID of the run.
        names: Such as hw.gpu.utilization.
        first: The first time in µs since 1970, or the first step; None for the first one of all.
        last: The end in µs, exclusive, or the last step, inclusive; None for the last one of all.
        points: Buckets at most.
        is_by_step: Buckets of steps, not of time.
        nodes: Only of these, and of `labels`; all if both are empty.
        labels: Only their GPUs and processes, and the hosts that they run on.
        lines_max: A band if there are more devices.
        width: Seconds or steps of a bucket at least. A band needs buckets in which each device has a sample.
    """

    run: str
    names: tuple[str, ...]
    first: int | None = None
    last: int | None = None
    points: int = POINTS_MAX
    is_by_step: bool = False
    nodes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    lines_max: int = LINES_MAX
    width: int = 1


def read_names(client: Client, run: str) -> dict[str, Any]:
    """Return what there are samples of.

    Returns:
        `names` with the number of samples and of devices and the span of each, `title` and `quantity` as of
        `SampleName`, and `flat`, the value if all samples of all devices have the same one, else None; `labels` with
        node, rank and GPUs; `steps`, as of `read_step_span`; `marks`: throttling and events of GPUs in the order
        of time, each with a step and a few `words`; `n_marks` of the run, also of those that are left out
        beyond MARKS_MAX: first the oldest throttling, then the oldest events.

    Raises:
        QueryError: A query has no result.
    """
    names = [_named(row) for row in client.sql(_NAMES, {"run": run}).rows()]
    names.sort(key=lambda row: sample_place(row["name"]))
    span = read_step_span(client, run)
    if not names and span is None:
        return {"names": [], "labels": [], "steps": None, "marks": [], "n_marks": 0}
    text = _MARKS.format(progress=progress_sql(span["n"] if span else 0))
    rows = client.sql(text, {"run": run}).rows()
    n_marks = max((row.pop("n_marks") for row in rows), default=0)
    _put_event_steps(client, run, rows)
    marks = [_mark(row) for row in rows]
    labels = client.sql(_LABELS, {"run": run}).rows()
    return {"names": names, "labels": labels, "steps": span, "marks": marks, "n_marks": n_marks}


def _put_event_steps(client: Client, run: str, rows: list[dict[str, Any]]) -> None:
    """Give events of GPUs the step that their label had begun. Without events, no step is read for it."""
    events = [row for row in rows if not row["reasons"]]
    if not events:
        return
    times = [
        round((row["ts"] - datetime(1970, 1, 1, tzinfo=row["ts"].tzinfo)) / timedelta(microseconds=1)) for row in events
    ]
    found = client.sql(_EVENT_STEPS, {"run": run, "first": min(times), "last": max(times)}).rows()
    names = ("ts", "label", "node", "device", "kind")
    steps = {tuple(row[name] for name in names): row["step"] for row in found}
    for row in events:
        row["step"] = steps.get(tuple(row[name] for name in names))


def _named(row: dict[str, Any]) -> dict[str, Any]:
    name, value = row["name"], row.pop("most")
    is_still, is_same, is_rate = row.pop("is_still"), row.pop("is_same"), is_counter(name)
    flat = None if not is_still else 0.0 if is_rate else value if is_same else None
    return {**row, **sample_name(name)._asdict(), "is_rate": is_rate, "flat": flat}


def _mark(row: dict[str, Any]) -> dict[str, Any]:
    reasons = row.pop("reasons")
    if reasons:
        words = throttle_text(reasons)
        return {**row, "words": words, "message": f"{row['device']} is throttled: {words}"}
    xid = None if row["xid"] is None else f"XID {row['xid']}"
    what = _EVENTS.get(row["kind"], "" if xid else row["kind"].removeprefix("gpu."))
    return {**row, "words": f"{what} {xid or ''}".strip()}


def read_system_curves(client: Client, request: SystemRequest) -> list[dict[str, Any]]:
    """Return names in buckets, in the form of `read_curves`, each with a line for each device, or a band.

    `last` is the last sample, of a band those of all devices in its last bucket; of a counter its last growth.

    Raises:
        QueryError: A query has no result.
    """
    counters = [name for name in request.names if is_counter(name)]
    named: dict[str, Any] = {"run": request.run, "names": list(request.names), "counters": counters}
    named |= {"lines_max": request.lines_max, "nodes": list(request.nodes), "labels": list(request.labels)}
    points = max(request.points - 1, 1)
    if request.is_by_step:
        span = read_step_span(client, request.run)
        first, last = _within(request, span["first_step"], span["last_step"]) if span is not None else (0, 0)
        width = max(bucket_width(max(last - first + 1, 1), points), bucket_width(request.width, 1))
        bounds = {"width": width, "first": first - first % width, "last": last - last % width + width - 1}
        text = _BY_STEP.format(progress=progress_sql(span["n"]), **bounds) if span is not None else ""
        head = {"width": width}
    else:
        first, last = _span_us(client, request)
        seconds = -(-(last - first) // 1_000_000)
        width_s = max(bucket_width(max(1, seconds), points), bucket_width(request.width, 1))
        width = width_s * 1_000_000
        text = _BY_TIME.format(width=width, first=first // width * width, last=last)
        head = {"width_s": width_s}
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in client.sql(text + _SAMPLED + _BUCKETS + _RESULT, named).rows() if text else ():
        by_name.setdefault(row["name"], []).append(row)
    curves = []
    for name in request.names:
        rows = by_name.get(name)
        curve: dict[str, Any] = {"kind": "none", "n_labels": 0, "step": [], "ts": []}
        if rows:
            n = rows[0]["n"]
            is_band = n > request.lines_max
            curve = _band(rows[0]) if is_band else _lines(rows)
            curve |= {"kind": "band" if is_band else "lines", "n_labels": n}
        if not request.is_by_step:  # buckets begin at whole widths
            curve["step"] = curve["ts"] = [place / 1000 for place in curve["step"]]
        about = {"key": name, **sample_name(name)._asdict(), "is_rate": name in counters}
        curves.append({**about, **head, **curve})
    return curves


def _span_us(client: Client, request: SystemRequest) -> tuple[int, int]:
    """Return the times of a request, with those of the samples in place of missing ones."""
    if request.first is not None and request.last is not None:
        return request.first, request.last
    [found] = client.sql(_TIMES, {"run": request.run, "names": list(request.names)}).rows()
    return _within(request, found["first_us"] or 0, (found["last_us"] or 0) + 1)


def _within(request: SystemRequest, first: int, last: int) -> tuple[int, int]:
    """Return what a request asks for of a span."""
    return max(first, request.first or first), last if request.last is None else min(last, request.last)


def _lines(rows: list[dict[str, Any]]) -> dict[str, Any]:
    owners = [_owner(row) for row in rows]
    counts = Counter(owners)
    labels = [
        f"{owner} {row['device']}" if counts[owner] > 1 and row["device"] else owner
        for owner, row in zip(owners, rows, strict=True)
    ]
    return lines_of([row | {"label": label} for label, row in zip(labels, rows, strict=True)])


def _band(row: dict[str, Any]) -> dict[str, Any]:
    last = {"step": row["last_step"], "min": row["last_min"], "median": row["last"], "max": row["last_max"]}
    return band_of(row | {"median": row["mean"]}) | {"last": last}


def _owner(row: dict[str, Any]) -> str:
    """Return the label of a GPU or a process; the node of what belongs to a host."""
    is_of_label = row["device"].startswith(("GPU-", "MIG-", "pid:"))
    return str(row["label"] if is_of_label else row["node"])
