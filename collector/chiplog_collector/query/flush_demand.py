"""What queries demand of the index: a flush before an answer, and frequent flushes while clients ask.

While no client asks, the index flushes at a long interval, and agents and ranks send at long ones. The index writes the
time of the newest query to the page that it shares with the receiver (see `running`). The receiver reports to its
agents whether clients ask.
"""

import math
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable

from chiplog_collector.query.suspect_queries import APPLIED_AT, QUERIED_AT, READ_AT
from chiplog_schemas.limits import INDEX_FLUSH_INTERVAL_S, INDEX_FLUSH_INTERVAL_SLOW_S, QUERIED_FOR_S

# How long a query waits for its flush. An index that keeps up applies one interval's records in less than the interval.
# One that is behind, after a restart for example, answers from what it has.
FLUSH_WAIT_S = 2 * INDEX_FLUSH_INTERVAL_SLOW_S
FLUSH_SHARED_S = 0.05  # queries that come within this time share a flush, which costs 7 ms of CPU however few its rows
_TIME = struct.Struct("d")
_NUMBER = struct.Struct("Q")


def is_queried(page: "mmap.mmap | bytearray", now: float) -> bool:
    """Return True if a client has asked a query within QUERIED_FOR_S. now: CLOCK_MONOTONIC."""
    asked_at = _TIME.unpack_from(page, QUERIED_AT)[0]
    return bool(asked_at) and now - asked_at < QUERIED_FOR_S


def read_at(page: "mmap.mmap | bytearray") -> float:
    """Return when a client last received a part of a large result; 0 if none has. CLOCK_MONOTONIC."""
    return float(_TIME.unpack_from(page, READ_AT)[0])


def applied(page: "mmap.mmap | bytearray") -> int:
    """Return the number after the last record of the log that SQL shows; 0 before the index is open."""
    return int(_NUMBER.unpack_from(page, APPLIED_AT)[0])


class QueryDemand:
    """Connects the threads that answer queries with the writer. Thread-safe.

    page: shared with the receiver; by default a new one. first_wait_s: how long queries wait for the first flush, which
    in an index that was started for them applies everything.
    """

    def __init__(
        self,
        page: "mmap.mmap | bytearray | None" = None,
        clock: Callable[[], float] = time.monotonic,
        first_wait_s: float = FLUSH_WAIT_S,
    ) -> None:
        self._page = bytearray(mmap.PAGESIZE) if page is None else page
        self._clock = clock
        self._wait_s = first_wait_s
        self._changed = threading.Condition()
        self._n_demanded = 0  # flushes that queries wait for, or waited for
        self._n_begun = 0  # of these
        self._n_flushed = 0  # of these
        self._begun_at = -math.inf
        self._is_behind = False  # a query has waited in vain, or would
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        """Let all queries continue, and close the descriptor. No query may be asked after this."""
        self.flushed(self._n_demanded)
        os.close(self._wake)

    # -- the threads that answer queries --

    def ask(self) -> int:
        """Note a query. Return the number of the flush that it must see."""
        with self._changed:
            now = self._clock()
            is_shared = now - self._begun_at < FLUSH_SHARED_S and is_queried(self._page, now)
            _TIME.pack_into(self._page, QUERIED_AT, now)
            if self._is_behind:
                return self._n_flushed  # safeguard: one-query-waits-for-late-index
            if not is_shared and self._n_demanded == self._n_begun:
                self._n_demanded += 1  # safeguard: query-flushes
                os.eventfd_write(self._wake, 1)
            return self._n_demanded

    def wait(self, number: int, until: float) -> None:
        """Wait for a flush that `ask` named, at most FLUSH_WAIT_S or `first_wait_s`.

        until: CLOCK_MONOTONIC; at most half of the time until then.
        """
        with self._changed:
            wait_s = min(self._wait_s, (until - self._clock()) / 2)  # the other half is for the query itself
            # safeguard: flush-wait-bounded
            is_done = self._changed.wait_for(lambda: self._n_flushed >= number, max(0.0, wait_s))
            self._is_behind = self._is_behind or (not is_done and wait_s >= FLUSH_WAIT_S)

    def note_read(self) -> None:
        """Note that a client reads a large result: an embedded collector does not exit then."""
        _TIME.pack_into(self._page, READ_AT, self._clock())

    # -- the writer --

    def note_applied(self, next_number: int) -> None:
        """Note how far the log is applied, for the receiver."""
        _NUMBER.pack_into(self._page, APPLIED_AT, next_number)

    @property
    def flush_interval_s(self) -> float:
        """How often the index flushes now."""
        with self._changed:  # a query that comes at this moment wakes the writer, or shortens the interval
            return INDEX_FLUSH_INTERVAL_S if is_queried(self._page, self._clock()) else INDEX_FLUSH_INTERVAL_SLOW_S

    def fileno(self) -> int:
        """Return a descriptor that is readable while a query waits for a flush that has not begun."""
        return self._wake

    def begin(self) -> int:
        """Begin a flush; return its number, for `flushed`. Call this before reading how far the log is."""
        with self._changed:
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                pass
            self._begun_at = self._clock()
            # Each flush has a number: a query that shares one waits until it is done.
            self._n_demanded = max(self._n_demanded, self._n_begun + 1)  # safeguard: shared-flush-awaited
            self._n_begun = self._n_demanded
            return self._n_begun

    def flushed(self, number: int, *, is_behind: bool = False) -> None:
        """Release the queries that wait for this flush.

        is_behind: the writer cannot write now. Until it can, no query waits.
        """
        if number > self._n_flushed or self._wait_s != FLUSH_WAIT_S or is_behind != self._is_behind:
            with self._changed:
                self._wait_s = FLUSH_WAIT_S
                self._n_flushed = number
                self._is_behind = is_behind
                self._changed.notify_all()
