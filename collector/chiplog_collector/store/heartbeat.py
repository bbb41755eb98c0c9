"""What a publisher writes beside the tables: that it lives, how far it is, and what waits at its collector.

One object for each log, replaced after each piece and once a minute while nothing arrives. Readers see news by listing
these objects, open the tables of which an object names a newer commit, and call a collector silent by the time that the
store gives them.
"""

import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from chiplog_collector.store.deletion_requests import DeletionRequests
from chiplog_collector.store.delta_store import REQUESTS, DeltaStore
from chiplog_collector.store.outbox import Outbox
from chiplog_schemas._version import __version__

BEAT_S = 60.0  # between two while nothing arrives
SILENT_S = 3 * BEAT_S  # without one, a collector is called silent
_MEASURED_S = 10.0  # how old the size of the outbox may be: thousands of pieces are many files


class Beats:
    """Writes the heartbeats of one log. Any method raises StoreError, OSError.

    Args:
        store: The store.
        outbox: What waits for it.
        keeps_files: True if the contents of saved files stay at the collector.
        maintained: The handles by which the same process maintains the store.
        former: The IDs that the log had before it was restored or retired.
        deletions: What other logs want deleted. A heartbeat has how much of that is done, for the time after this log.
        clock: In seconds, never set back.
    """

    def __init__(
        self,
        store: DeltaStore,
        outbox: Outbox,
        *,
        keeps_files: bool,
        maintained: DeltaStore | None = None,
        former: Sequence[str] = (),
        deletions: DeletionRequests | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._keeps_files = keeps_files
        self._stores = [store] if maintained is None else [store, maintained]
        self._former = list(former)
        self._deletions = deletions
        self._clock = clock
        self._since = _now()
        self._due_at = self._measure_at = 0.0
        self._waiting_bytes = 0
        self._published_at: str | None = None

    def note_published(self) -> None:
        """Have the next one written at once, because a piece was published."""
        self._published_at = _now()
        self._due_at = 0.0

    def beat(self, number: int) -> None:
        """Write one if it is due. number: the record up to which the log is published."""
        now = self._clock()
        if self._due_at and now < self._due_at:
            return
        self._store.put_heartbeat(self._content(number, now))
        self._due_at = now + BEAT_S

    def _content(self, number: int, now: float) -> dict[str, Any]:
        at, is_cutting, waiting = _now(), self._outbox.is_cutting(), self._outbox.ends()
        if not waiting:
            self._waiting_bytes = 0
        elif not self._waiting_bytes or now >= self._measure_at:
            self._waiting_bytes = self._outbox.size_bytes()
            self._measure_at = now + _MEASURED_S
        oldest_at = self._outbox.oldest_at()
        return {
            "at": at,
            "idle_at": None if waiting or is_cutting else at,  # the store has all that was cut before
            "host": socket.gethostname(),
            "version": __version__,
            "former": self._former,
            "number": number,
            "published_at": self._published_at,
            "waiting": len(waiting),
            "waiting_bytes": self._waiting_bytes,
            "lag_s": 0.0 if oldest_at is None else round(max(0.0, time.time() - oldest_at), 1),
            "keeps_files": self._keeps_files,
            "since": self._since,
            "deletions": None if self._deletions is None else self._deletions.answered_until(number),
            "requests": {kind: sum(store.requests[kind] for store in self._stores) for kind in REQUESTS},
            "tables": self._versions(),
        }

    def _versions(self) -> dict[str, int]:
        """Return the newest commit of each table that this process knows."""
        found: dict[str, int] = {}
        for store in self._stores:
            for table, version in list(store.versions.items()):
                found[table] = max(version, found.get(table, -1))
        return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
