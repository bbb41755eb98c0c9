"""How the labels of one round ended: each one's seconds from the first failure, last step and line, and GPUs then."""

from collections import defaultdict
from datetime import datetime
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.run_report import RANK_ROUNDS_FIRST
from chiplog_client.reads.system.throttling import THROTTLE_COUNTERS, THROTTLED_SHARE_MIN, names_sql, throttle_text

LABELS_MAX = 2_048
EVENTS_MAX = 3  # of GPUs, named per label
_SAMPLE_AGE_S = 60  # an older sample does not describe the GPU at the end of its label
_BEFORE_S, _AFTER_S = 600, 60  # events of GPUs this long before the first failure, and after the end of their label
_ROUNDS = f"""
SELECT attempt, label, ts, state, reason, is_cause, is_certain, uncertainty_s, others, gpu_event
FROM first_failure
WHERE run_id = $run ORDER BY {RANK_ROUNDS_FIRST}
"""
_LABELS = f"""
WITH members AS MATERIALIZED (
    FROM reads.round_of_run($run, $round)
), steps AS (
    SELECT producer, max(last_step) AS last_step FROM reads.series WHERE run_id = $run GROUP BY producer
), lines AS (
    SELECT label, attempt, arg_max(line, (ts, line_no)) AS last_line
    FROM console SEMI JOIN members USING (label, attempt) WHERE run_id = $run GROUP BY label, attempt
)
SELECT m.* EXCLUDE (producer, at_us), (m.at_us - first(m.at_us ORDER BY m.label <> $first) OVER ()) / 1e6 AS after_s,
       s.last_step, l.last_line
FROM members m LEFT JOIN steps s ON s.producer = m.producer
LEFT JOIN lines l ON l.label = m.label AND l.attempt = m.attempt
ORDER BY m.label <> $first, CASE WHEN after_s >= 0 THEN 0 WHEN after_s IS NULL THEN 1 ELSE 2 END, after_s,
         m.rank NULLS LAST, m.label LIMIT {LABELS_MAX}
"""
_WHEN = "(SELECT unnest($labels::VARCHAR[]) AS label, make_timestamp(unnest($times::BIGINT[])) AS at)"
_SAMPLES = f"""
SELECT s.label, s.name, s.device, arg_max(s.value, s.ts) AS value FROM system s JOIN {_WHEN} w ON w.label = s.label
WHERE s.run_id = $run AND s.ts <= w.at AND s.ts > w.at - to_seconds({_SAMPLE_AGE_S}) AND s.ts <= make_timestamp($until)
  AND s.name IN ('hw.temperature.core', 'hw.gpu.throttle.reasons', 'hw.gpu.memory.usage', 'hw.gpu.memory.limit',
                 'hw.gpu.utilization')
GROUP BY ALL
"""
# How much each counter of throttled time grew between its last two samples.
_THROTTLED = f"""
SELECT s.label, s.name, s.device, s.value - lag(s.value) OVER of_counter AS growth,
       epoch(s.ts) - epoch(lag(s.ts) OVER of_counter) AS seconds
FROM system s JOIN {_WHEN} w ON w.label = s.label
WHERE s.run_id = $run AND s.ts <= w.at AND s.ts > w.at - to_seconds({_SAMPLE_AGE_S}) AND s.ts <= make_timestamp($until)
  AND s.name IN ({names_sql(THROTTLE_COUNTERS)})
WINDOW of_counter AS (PARTITION BY s.label, s.node, s.device, s.name ORDER BY s.ts)
QUALIFY row_number() OVER (PARTITION BY s.label, s.node, s.device, s.name ORDER BY s.ts DESC) = 1 AND growth IS NOT NULL
"""
_GPU_EVENTS = f"""
SELECT e.label, e.kind, e.xid, e.message FROM reads.gpu_events e JOIN {_WHEN} w ON w.label = e.label
WHERE e.run_id = $run AND e.ts > make_timestamp($since) - to_seconds({_BEFORE_S})
  AND e.ts <= w.at + to_seconds({_AFTER_S}) ORDER BY e.ts
"""


def read_failures(client: Client, run: str, attempt: int | None = None) -> dict[str, Any]:
    """Return the labels of a round: the first failure, what ended after it, what runs on, what ended before.

    Args:
        client: The collector.
        run: The run.
        attempt: The round, as of first_failure; None for the newest in which a rank failed.

    Returns:
        `rounds`, numbers of the rounds with a failure; `first`, the row of first_failure of this round without its
        others, or None without a failure; `labels`, each with `after_s` from the first failure, None while it runs,
        `role`: `first`, `echo`, `cause` for a further failure that follows from no other, or None; and `gpu`, the
        largest `temperature_c` and `memory_share`, mean `utilization`, `throttled` in words and `events`, as far as
        they are known.

    Raises:
        QueryError: A query has no result.
        BadRequestError: No label failed in this round.
    """
    rounds = client.sql(_ROUNDS, {"run": run}).rows()
    if not rounds:
        return {"rounds": [], "first": None, "labels": []}
    numbers = sorted(row["attempt"] for row in rounds)
    first = next((row for row in rounds if attempt is None or row["attempt"] == attempt), None)
    if first is None:
        raise BadRequestError(f"attempt={attempt} has no failure; choose one of {', '.join(map(str, numbers))}")
    others = {row["label"]: "echo" if row["is_echo"] else "cause" for row in first.pop("others")}
    labels = client.sql(_LABELS, {"run": run, "round": first["attempt"], "first": first["label"]}).rows()
    gpus = _gpus(client, run, first["ts"], labels)
    for row in labels:
        row["role"] = "first" if row["label"] == first["label"] else others.get(row["label"])
        row["gpu"] = gpus.get(row["label"])
    return {"rounds": numbers, "first": first, "labels": labels}


def _gpus(client: Client, run: str, zero: datetime, labels: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the state of each label's GPUs at its end; of a label that runs, at the first failure."""
    times = [_microseconds(row["ts"] or zero) for row in labels]
    when = {"run": run, "labels": [row["label"] for row in labels], "times": times}
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    reasons: dict[tuple[str, str], int] = defaultdict(int)  # by label and GPU
    for row in client.sql(_SAMPLES, {**when, "until": max(times)}).rows():
        values[row["label"]][row["name"]].append(row["value"])
        if row["name"] == "hw.gpu.throttle.reasons":
            reasons[row["label"], row["device"]] = int(row["value"])
    for row in client.sql(_THROTTLED, {**when, "until": max(times)}).rows():
        bit, gpu = THROTTLE_COUNTERS[row["name"]], (row["label"], row["device"])
        is_throttled = row["growth"] > THROTTLED_SHARE_MIN * row["seconds"]
        reasons[gpu] = reasons[gpu] & ~bit | bit * is_throttled  # safeguard: failures-by-counters
    of_label: dict[str, int] = defaultdict(int)
    for (label, _), bits in reasons.items():
        of_label[label] |= bits
    found = {label: _state(values[label], of_label[label]) for label in {*values, *of_label}}
    for row in client.sql(_GPU_EVENTS, {**when, "since": _microseconds(zero)}).rows():
        events = found.setdefault(row["label"], {}).setdefault("events", [])
        is_named = row["xid"] is None or row["kind"] == "gpu.xid"  # whose message has the number
        text = row["message"] if is_named else f"XID {row['xid']}: {row['message']}"
        if text not in events and len(events) < EVENTS_MAX:
            events.append(text)
    return found


def _state(by_name: dict[str, list[float]], reasons: int) -> dict[str, Any]:
    used, limits = by_name.get("hw.gpu.memory.usage", []), by_name.get("hw.gpu.memory.limit", [])
    loads = by_name.get("hw.gpu.utilization", [])
    return {
        "temperature_c": max(by_name.get("hw.temperature.core", []), default=None),
        "memory_share": max(used) / max(limits) if used and limits and max(limits) > 0 else None,
        "utilization": sum(loads) / len(loads) if loads else None,
        "throttled": throttle_text(reasons) or None,
    }


def _microseconds(at: datetime) -> int:
    return round((at - datetime(1970, 1, 1, tzinfo=at.tzinfo)).total_seconds() * 1e6)
