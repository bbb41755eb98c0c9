"""What happened in a run, the newest first, and how often each kind of it."""

from dataclasses import dataclass
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.event_kinds import kind_title
from chiplog_client.reads.parameters import CHOSEN_LABELS
from chiplog_client.results.json_texts import decoded

EVENTS_MAX = 2_000
# The events of a run, and those of the GPUs that its labels used, which agents report: they are of no run.
EVENTS_OF_RUN = """(
    SELECT ts, label, attempt, node, seq, kind, level, message, body FROM events WHERE run_id = $run
    UNION ALL
    SELECT g.ts, g.label, NULL, g.node, -1, g.kind, g.level, g.message, g.body FROM reads.gpu_events g
    WHERE g.run_id = $run AND NOT EXISTS (
        FROM events e WHERE e.run_id = $run AND e.ts = g.ts AND e.kind = g.kind AND e.message = g.message
    )
)"""
_EVENTS = f"""
SELECT ts, label, attempt, node, kind, level, message, body FROM {EVENTS_OF_RUN}
WHERE ($kind = '' OR kind = $kind) AND ($level = '' OR level = $level)
  AND {CHOSEN_LABELS}
ORDER BY ts DESC, seq DESC LIMIT $limit
"""
_KINDS = f"""
SELECT kind, level, count(*) AS n FROM {EVENTS_OF_RUN}
WHERE {CHOSEN_LABELS}
GROUP BY kind, level ORDER BY kind, level
"""


@dataclass(frozen=True)
class EventsRequest:
    """What to read. kind, level, labels: only events of these; all if empty. limit: events at most."""

    run: str
    kind: str = ""
    level: str = ""
    labels: tuple[str, ...] = ()
    limit: int = EVENTS_MAX


def read_events(client: Client, request: EventsRequest) -> dict[str, Any]:
    """Return `rows`, the newest events with decoded bodies, and `kinds` with level, number and title of each.

    Raises:
        QueryError: A query has no result.
    """
    named: dict[str, Any] = {"run": request.run, "labels": list(request.labels)}
    chosen = {"kind": request.kind, "level": request.level, "limit": request.limit}
    rows, kinds = client.sql(_EVENTS, named | chosen).rows(), client.sql(_KINDS, named).rows()
    for row in kinds:
        row["title"] = kind_title(row["kind"])
    for row in rows:
        row["body"] = decoded(row["body"])
    return {"rows": rows, "kinds": kinds}
