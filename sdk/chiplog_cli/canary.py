"""Send events through the whole pipeline and check that SQL returns them: the only end-to-end health check."""

import os
import random
import secrets
import time
from dataclasses import dataclass

from chiplog.identity.process_info import node_name
from chiplog.journal.journal import Journal
from chiplog.journal.sender import SenderThread
from chiplog_client import daemons
from chiplog_client.client import Client, NoDataError, QueryError, connect
from chiplog_schemas.clock import now_us
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import JOURNAL_MEMORY_BYTES_MAX
from chiplog_schemas.model.events import PRODUCER_BYTES, EventKind, encode
from chiplog_schemas.paths import Paths

EVENTS_MAX = 100_000  # half the capacity of a journal in memory
_ASK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """The result of sending canary events.

    acknowledged_s, visible_s: seconds from the first send until the agent has acknowledged all events, and until SQL
    shows them all; None if that did not happen in time. sent, arrived, doubled, altered: numbers of events; an altered
    event has another value than was sent. was_queried: whether SQL could be asked; `reason` has why not.
    """

    acknowledged_s: float | None
    visible_s: float | None
    reason: str = ""
    sent: int = 1
    arrived: int = 0
    doubled: int = 0
    altered: int = 0
    was_queried: bool = True

    @property
    def lost(self) -> int:
        """How many events did not arrive."""
        return self.sent - self.arrived

    @property
    def ok(self) -> bool:
        """Whether each event arrived exactly once and unchanged."""
        return not (self.lost or self.doubled or self.altered)


def send_canaries(where: Paths, agent_address: str | None, wait_s: float, events: int = 1) -> CanaryResult:
    """Log notices as a separate producer (role `canary`, in no run) and wait until SQL shows them all.

    events: how many. Each has a random value that must arrive unchanged. SQL is asked at CHIPLOG_COLLECTOR, else at the
    collector to which the agent of this directory delivers.
    """
    token = secrets.token_hex(8)
    values = [random.random() for _ in range(events)]
    begun = time.monotonic()
    problem = _send(where, agent_address, wait_s, token, values)
    if problem is not None:
        return CanaryResult(None, None, problem, events)
    acknowledged_s = time.monotonic() - begun
    url = os.environ.get("CHIPLOG_COLLECTOR") or (None if agent_address else daemons.collector_elsewhere(where)) or None
    try:
        with connect(url, dir=where.root if url is None else None) as client:
            while time.monotonic() - begun < wait_s:
                if _count(client, token) >= events:
                    visible_s = time.monotonic() - begun
                    return CanaryResult(acknowledged_s, visible_s, "", events, *_compare(client, token, values))
                time.sleep(_ASK_AGAIN_S)
            missed = "it did not appear in SQL"
            return CanaryResult(acknowledged_s, None, missed, events, *_compare(client, token, values))
    except (QueryError, NoDataError, ValueError) as error:  # ValueError: no reader's key
        return CanaryResult(acknowledged_s, None, str(error), events, was_queried=False)


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
