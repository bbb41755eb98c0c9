"""Events whose values are not known yet: promised in the journal, and appended once the values are ready.

The calls in training code take no longer than an append to a queue. The sender thread and `finish()` do the polling,
reading and appending.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from typing import Protocol

from chiplog.journal.event_sink import EventSink
from chiplog.journal.journal import Journal
from chiplog_schemas.interrupts import unless_interrupt

_POLL_INTERVAL_S = 0.001  # poll interval while finish() waits for a device


class DeferredEvent(Protocol):
    """One event that is not appended yet."""

    def is_ready(self) -> bool:
        """Return True if its values are ready. Never blocks."""
        ...

    def append(self) -> None:
        """Append it to the journal."""
        ...

    def release(self) -> None:
        """Release its resources."""
        ...


class DeferredEvents:
    """The pending events of one run. Events of a lane, for example of one device or stream, are appended in order."""

    def __init__(self, journal: Callable[[], EventSink], failed: Callable[[Exception], None]) -> None:
        self._journal = journal
        self._failed = failed
        self._lanes: dict[Hashable, deque[DeferredEvent]] = {}
        self._lost: Counter[str] = Counter()  # dropped, not declared yet
        self.n_lost = 0  # dropped before the end of the run
        self._lock = RLock()  # a signal handler may log while its thread is in here
        self._is_polling = False  # by one thread: no call between setting the flag and entering the `try`
        # The context for a thread that queries devices.
        self.poll_context: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def pending(self) -> int:
        """How many events are not appended and not declared lost yet."""
        return sum(map(len, self._lanes.values())) + sum(self._lost.values())

    @property
    def is_used(self) -> bool:
        """Return True if an event was ever added: their buffers are bounded, so `poll` is needed often."""
        return bool(self._lanes)

    def add(self, lane: Hashable, entry: DeferredEvent) -> None:
        """Promise an event."""
        with self._lock:
            entries = self._lanes.get(lane)
            if entries is None:
                # A new dict: a thread that iterates over the old one must not see it change.
                entries = deque[DeferredEvent]()
                self._lanes = {**self._lanes, lane: entries}
            entries.append(entry)
            self._promise()

    def lose(self, reason: str, count: int = 1) -> None:
        """Declare events lost that could not be added."""
        with self._lock:
            self._lost[reason] += count
            self.n_lost += count
            self._promise()

    def poll(self) -> None:
        """Append the events that are ready, in order, and declare the dropped ones. Never waits for a device."""
        if not (self._lost or any(self._lanes.values())):
            return
        if self._is_polling:
            return
        self._is_polling = True
        try:
            with self.poll_context():
                for entries in self._lanes.values():
                    while entries and self._is_ready(entries[0]):
                        self._resolve(entries)
            self._append_lost()
        finally:
            self._is_polling = False

    def close(self, wait_s: float, reason: str) -> None:
        """Wait for pending events for at most `wait_s`, then drop the rest."""
        deadline = time.monotonic() + wait_s
        self.poll()
        while self.pending and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
            self.poll()
        while self._is_polling and time.monotonic() < deadline + _POLL_INTERVAL_S:
            time.sleep(_POLL_INTERVAL_S)
        left = sum(map(len, self._lanes.values()))
        if not left or self._is_polling:
            return
        self._is_polling = True
        try:
            with self._lock:
                self._kept = self._lanes  # a copy into their buffers may still be in progress
                self._lanes = {}
                self._lost[reason] += left
            self._append_lost()
        finally:
            self._is_polling = False

    def _is_ready(self, entry: DeferredEvent) -> bool:
        try:
            return entry.is_ready()
        except unless_interrupt(Exception):
            return True  # its device has failed: reading it reports why

    def _resolve(self, entries: deque[DeferredEvent]) -> None:
        entry = entries[0]
        try:
            entry.append()
        except unless_interrupt(Exception) as error:
            self._failed(error)
            self.lose("values on a device: could not be read")
        with self._lock:
            entries.popleft()
            self._promise()  # after the append: a kill in between declares one too many, never one too few
        entry.release()

    def _append_lost(self) -> None:
        journal = self._journal()
        for reason, count in list(self._lost.items()):
            if isinstance(journal, Journal):
                journal.lose(count, reason)
            with self._lock:
                self._lost[reason] -= count
                if not self._lost[reason]:
                    del self._lost[reason]
                self._promise()

    def _promise(self) -> None:
        journal = self._journal()
        if isinstance(journal, Journal):
            journal.promise(self.pending)  # safeguard: pending-count-on-head-page
