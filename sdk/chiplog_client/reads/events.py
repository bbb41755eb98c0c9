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
# The events of a node that are of no run: of its agent, its GPUs and its collector.
_EVENTS_OF_NODE = """(
    SELECT ts, label, attempt, node, seq, kind, level, message, body FROM events WHERE run_id IS NULL AND node = $run
)"""
_EVENTS = f"""
SELECT ts, label, attempt, node, kind, level, message, body FROM {{source}}
WHERE ($kind = '' OR kind = $kind) AND ($level = '' OR level = $level)
  AND {CHOSEN_LABELS}
ORDER BY ts DESC, seq DESC LIMIT $limit
"""
_KINDS = f"""
SELECT kind, level, count(*) AS n FROM {{source}}
WHERE {CHOSEN_LABELS}
GROUP BY kind, level ORDER BY kind, level
"""
_NODES = "SELECT DISTINCT node FROM events WHERE run_id IS NULL AND node IS NOT NULL ORDER BY node"


@dataclass(frozen=True)
class EventsRequest:
    """What to read. kind, level, labels: only events of these; all if empty. limit: events at most.

    run: an ID; with `is_node` the name of a node, for its events that are of no run.
    """

    run: str
    kind: str = ""
    level: str = ""
    labels: tuple[str, ...] = ()
    limit: int = EVENTS_MAX
    is_node: bool = False


def read_events(client: Client, request: EventsRequest) -> dict[str, Any]:
    """Return `rows`, the newest events with decoded bodies, and `kinds` with level, number and title of each.

    Raises:
        QueryError: A query has no result.
    """
    named: dict[str, Any] = {"run": request.run, "labels": list(request.labels)}
    chosen = {"kind": request.kind, "level": request.level, "limit": request.limit}
    source = _EVENTS_OF_NODE if request.is_node else EVENTS_OF_RUN
    rows = client.sql(_EVENTS.format(source=source), named | chosen).rows()
    kinds = client.sql(_KINDS.format(source=source), named).rows()
    for row in kinds:
        row["title"] = kind_title(row["kind"])
    for row in rows:
        row["body"] = decoded(row["body"])
    return {"rows": rows, "kinds": kinds}


def read_event_nodes(client: Client) -> list[str]:
    """Return the names of the nodes that have events of no run.

    Raises:
        QueryError: The query has no result.
    """
    return [row["node"] for row in client.sql(_NODES).rows()]
