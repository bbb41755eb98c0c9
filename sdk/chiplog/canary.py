"""Send one event through the real path and see whether it comes out of SQL: the only honest health check."""

import os
import secrets
import time
from dataclasses import dataclass

from chiplog.client import Client, NoDataError, QueryError, connect
from chiplog.journal import Journal
from chiplog.process import host_name
from chiplog.sender import SenderThread
from chiplog_schemas.codec import pack
from chiplog_schemas.events import PRODUCER_BYTES, EventKind, encode
from chiplog_schemas.limits import JOURNAL_MEMORY_BYTES_MAX
from chiplog_schemas.places import Places
from chiplog_schemas.segments import now_us

_ASK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Flight:
    """What became of a canary. Seconds since it was logged; None: that did not happen within the time given."""

    acknowledged_s: float | None
    visible_s: float | None
    reason: str = ""


def fly(where: Places, agent_address: str | None, wait_s: float) -> Flight:
    """Log one notice as a producer of its own (role `canary`, in no run) and wait until SQL shows it."""
    producer = secrets.token_bytes(PRODUCER_BYTES)
    token = secrets.token_hex(8)
    identity = {"role": "canary", "node": host_name(), "pid": os.getpid(), "started_at": now_us()}
    journal = Journal(None, producer, pack(identity), bytes_max=JOURNAL_MEMORY_BYTES_MAX)
    begun = time.monotonic()
    journal.append(encode(EventKind.IDENTITY, now_us(), identity))
    journal.append(encode(EventKind.NOTICE, now_us(), "canary", "debug", token, {}))
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
    if not sender.stop(wait_s):
        return Flight(None, None, problems[0] if problems else "no agent acknowledged it")
    acknowledged_s = time.monotonic() - begun
    try:
        with connect(None, dir=None if os.environ.get("CHIPLOG_COLLECTOR") else where.root) as client:
            while time.monotonic() - begun < wait_s:
                if _is_visible(client, token):
                    return Flight(acknowledged_s, time.monotonic() - begun)
                time.sleep(_ASK_AGAIN_S)
    except (QueryError, NoDataError) as error:
        return Flight(acknowledged_s, None, str(error))
    return Flight(acknowledged_s, None, "it did not show in SQL")


def _is_visible(client: Client, token: str) -> bool:
    return bool(client.sql("SELECT 1 FROM events WHERE kind = 'canary' AND message = ?", [token]).tuples())
