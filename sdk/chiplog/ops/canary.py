"""Send events through the real path and see whether they come out of SQL: the only honest health check."""

import os
import random
import secrets
import time
from dataclasses import dataclass

from chiplog.identity.process_info import node_name
from chiplog.journal.journal import Journal
from chiplog.journal.sender import SenderThread
from chiplog.query.client import Client, NoDataError, QueryError, connect
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import JOURNAL_MEMORY_BYTES_MAX
from chiplog_schemas.model.events import PRODUCER_BYTES, EventKind, encode
from chiplog_schemas.paths import Paths
from chiplog_schemas.storage.segments import now_us

EVENTS_MAX = 100_000  # half of what a journal in memory holds
_ASK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """What became of a flock of canaries.

    Seconds since the first was sent, None when that did not happen within the time given: until all were acknowledged
    by the agent, and until all were visible in SQL. Of the `sent` events `arrived` came out, some perhaps `doubled` or
    with other values than were sent (`altered`).
    """

    acknowledged_s: float | None
    visible_s: float | None
    reason: str = ""
    sent: int = 1
    arrived: int = 0
    doubled: int = 0
    altered: int = 0

    @property
    def lost(self) -> int:
        """How many did not come out."""
        return self.sent - self.arrived

    @property
    def ok(self) -> bool:
        """Whether each came out once, as it was sent."""
        return not (self.lost or self.doubled or self.altered)


def send_canaries(where: Paths, agent_address: str | None, wait_s: float, events: int = 1) -> CanaryResult:
    """Log notices as a producer of its own (role `canary`, in no run) and wait until SQL shows them all.

    events: how many, each with a random value that must come out as it was.
    """
    token = secrets.token_hex(8)
    values = [random.random() for _ in range(events)]
    begun = time.monotonic()
    problem = _send(where, agent_address, wait_s, token, values)
    if problem is not None:
        return CanaryResult(None, None, problem, events)
    acknowledged_s = time.monotonic() - begun
    try:
        with connect(None, dir=None if os.environ.get("CHIPLOG_COLLECTOR") else where.root) as client:
            while time.monotonic() - begun < wait_s:
                if _count(client, token) >= events:
                    visible_s = time.monotonic() - begun
                    return CanaryResult(acknowledged_s, visible_s, "", events, *_compare(client, token, values))
                time.sleep(_ASK_AGAIN_S)
            missed = "it did not show in SQL"
            return CanaryResult(acknowledged_s, None, missed, events, *_compare(client, token, values))
    except (QueryError, NoDataError) as error:
        return CanaryResult(acknowledged_s, None, str(error), events)


def _send(where: Paths, agent_address: str | None, wait_s: float, token: str, values: list[float]) -> str | None:
    """Send one notice for each value; return why they were not acknowledged, or None."""
    identity = {"role": "canary", "node": node_name(), "pid": os.getpid(), "started_at": now_us()}
    producer = secrets.token_bytes(PRODUCER_BYTES)
    journal = Journal(None, producer, pack(identity), bytes_max=JOURNAL_MEMORY_BYTES_MAX)
    journal.append(encode(EventKind.IDENTITY, now_us(), identity))
    problems: list[str] = []
    sender = SenderThread(
        journal,
        where,
        identity,
        agent_address=agent_address or where.agent_address,
        online=True,
        on_tick=lambda: None,
        warn=problems.append,
    )
    sender.start()
    for number, value in enumerate(values):
        journal.append(encode(EventKind.NOTICE, now_us(), "canary", "debug", token, {"number": number, "value": value}))
    if sender.stop(wait_s):
        return None
    return problems[0] if problems else "no agent acknowledged it"


_CANARY_FILTER = "FROM events WHERE kind = 'canary' AND message = ?"


def _count(client: Client, token: str) -> int:
    return int(client.sql(f"SELECT count(*) {_CANARY_FILTER}", [token]).tuples()[0][0])


def _compare(client: Client, token: str, values: list[float]) -> tuple[int, int, int]:
    """Return (arrived, doubled, altered)."""
    query = f"SELECT (body->>'number')::BIGINT, (body->>'value')::DOUBLE {_CANARY_FILTER}"
    rows = client.sql(query, [token]).tuples()
    arrived = {number for number, _ in rows}
    altered = sum(not 0 <= number < len(values) or values[number] != value for number, value in rows)
    return len(arrived), len(rows) - len(arrived), altered
