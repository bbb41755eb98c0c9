"""The map of an IMPORTED event: what an import says about a producer besides the events that it delivers as they were.

An import delivers events of the original producers under their original seqs. What the index derived, or what depends
on the order of arrival, comes as the result: one event per producer with PRODUCER_FIELDS and RUN_FIELDS, after all
others. Rows and seqs may be divided among several events. Each has the seq of an event that it replaces.
"""

from typing import Any

# The columns of base.producers that do not depend on the collector. Times in µs since the epoch.
PRODUCER_FIELDS: dict[str, type | tuple[type, ...]] = {
    "role": str,
    "label": str,
    "is_primary": bool,
    "job_type": str,
    "rank": int,
    "local_rank": int,
    "world_size": int,
    "node": str,
    "pid": int,
    "gpus": list,
    "launch": str,
    "restart": int,
    "state": str,
    "exit_code": int,
    "exit_signal": int,
    "reason": str,
    "sets_run": bool,
    "started_at": int,
    "ended_at": int,
    "produced": int,
    "fallback": bool,
    "boot": str,
    "late_us": int,
    "is_presumed": bool,
    "clock_us": int,
    "uptime_us": int,
    "hostname": str,
    "rank_pid": int,
    "agent_node": str,
    "start_ticks": int,
    "is_remote": bool,
    "parent": str,
    "is_coauthor": bool,
    "are_gpus_resolved": bool,
    "cause": str,  # an EndCause
}

# The fields that an identity has, and how the run's primary was decided.
RUN_FIELDS: dict[str, type | tuple[type, ...]] = {
    "run_id": str,
    "project": str,
    "name": str,
    "group": str,
    "job_type": str,
    "tags": list,
    "notes": str,
    "primary_label": str,
    "primary_launch": str,
    "primary_restart": int,
    "told": list,  # label checks that were reported
}


def identity_of_import(body: Any) -> dict[str, Any]:
    """Return what an IMPORTED event says as an identity would: node, run_id and label, where they are present."""
    producer, run = (body.get(name) if isinstance(body, dict) else None for name in ("producer", "run"))
    if not isinstance(producer, dict):
        return {}
    node = producer.get("agent_node") or producer.get("node")
    run_id = run.get("run_id") if isinstance(run, dict) else None
    return {"node": node, "run_id": run_id, "label": producer.get("label")}
