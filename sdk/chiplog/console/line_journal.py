"""Record a helper's lines: a separate producer, with the same journal and sender as a rank."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chiplog.journal.factory import open_journal
from chiplog.journal.sender import SenderThread
from chiplog_schemas.clock import now_us
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.paths import Paths

_STOP_S = 0.3  # for a sender that has nothing left to send


class ConsoleJournal:
    """Console lines as events of a producer of role `console`, `of` the rank's.

    orders: places, mode, address, bounds and identity, from the rank. warn: called when the agent cannot be reached.
    """

    def __init__(self, orders: dict[str, Any], warn: Callable[[str], object]) -> None:
        root, local, run = map(Path, orders["places"])
        places = Paths(root, local, run)
        bounds, mode = Limits(**orders["bounds"]), orders["mode"]
        started_us = now_us()
        # No PID: the agent would take this process for a rank's, and sample it.
        info = {"role": "console", "started_at": started_us, **orders["identity"]}
        self._journal, _ = open_journal(places, mode, bounds, info, started_us, warn)
        self._sealed_at = float("inf")
        self._is_online = mode != "offline"
        self._sender: SenderThread | None = SenderThread(
            self._journal,
            places,
            info,
            # An explicit address keeps it from starting an agent: the rank does that.
            agent_address=orders["agent"] or places.agent_address,
            online=self._is_online,
            on_tick=lambda: None,
            warn=warn,
            probes=False,  # the rank does
        )
        self._sender.start()

    @property
    def is_crowded(self) -> bool:
        """Whether the journal is nearly full, so that lines must be dropped."""
        return self._journal.is_under_pressure

    def line(self, now_us: int, stream: int, line_no: int, line: str) -> None:
        """Record a line."""
        self._journal.append(encode(EventKind.CONSOLE, now_us, stream, line_no, line))

    def notice(self, kind: str, message: str, body: dict[str, Any]) -> None:
        """Append a notice, which becomes a row of `events`."""
        payload = encode(EventKind.NOTICE, now_us(), kind, "warning", message, body)
        self._journal.append(payload, urgent=True)

    def seal(self) -> None:
        """Append the final state. Offline the journal is then complete, so close it."""
        last = encode(EventKind.STATE, now_us(), {"state": "finished"})
        self._journal.seal(last, lambda: None)
        self._journal.mark_finished()
        self._sealed_at = time.monotonic()
        if self._sender is not None:
            self._sender.wake()
        if not self._is_online:
            self.close(_STOP_S)

    def is_delivered_or_expired(self, wait_s: float) -> bool:
        """Return True if everything is delivered, or if `wait_s` has passed since the seal."""
        delivered = self._journal.acked >= self._journal.next_seq
        return delivered or time.monotonic() >= self._sealed_at + wait_s

    def close(self, wait_s: float) -> None:
        """Send the rest for at most `wait_s`. After that the process that adopts the journal delivers it."""
        if self._sender is not None:
            delivered = self._sender.stop(max(wait_s, _STOP_S))
            self._journal.close(remove=delivered)
            self._sender = None
