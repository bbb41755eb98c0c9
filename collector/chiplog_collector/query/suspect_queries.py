"""The running queries, in memory that outlives the process, so that a query that ended the index is known afterwards.

The receiver creates a page of memory and passes it to each index process. Before a query runs, the index writes the
query's digest into the page. A digest that the next index finds there was running when the process ended. That query is
a suspect: it runs alone from then on, so that it is not blamed for another. If it ends normally, it is no longer a
suspect. If the process ends again, the query is refused.

    offset  size  field
         0  64 × 16  digests of running queries, zero: none
      1024  64 × 28  suspects: digest, process ends as u32, CLOCK_MONOTONIC of the last as f64
      2816        8  CLOCK_MONOTONIC of the newest query as f64 (see `demand`)
      2824        8  CLOCK_MONOTONIC of the newest part of a result as f64 (see `demand`)
"""

import hashlib
import math
import mmap
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from chiplog_schemas.codec import pack

PAGE_BYTES = mmap.PAGESIZE
RUNNING_MAX = 64  # per process: the maximum of CHIPLOG_QUERIES_AT_ONCE; more than these are not recorded
SUSPECTS_MAX = 64  # above it the oldest is dropped: each process end adds at most RUNNING_MAX
ENDS_MAX = 2  # process ends during one query, after which it is refused
FORGIVEN_AFTER_S = 3600.0  # the data, and with it DuckDB's plan, may have changed
_CLAIM_S = 1.0  # a suspect that waits to run alone repeats its claim in each turn of its service, four times a second
_DIGEST_BYTES = 16
_NONE = bytes(_DIGEST_BYTES)
_SUSPECT = struct.Struct("<16sId")
_SUSPECTS_AT = RUNNING_MAX * _DIGEST_BYTES
QUERIED_AT = _SUSPECTS_AT + SUSPECTS_MAX * _SUSPECT.size
READ_AT = QUERIED_AT + 8
APPLIED_AT = READ_AT + 8


def digest_of(sql: str, params: list[Any] | dict[str, Any] | None) -> bytes:
    """Return the digest that identifies a query."""
    return hashlib.blake2b(pack([sql, params]), digest_size=_DIGEST_BYTES).digest()


class RunningQueries:
    """All queries that run in this process, in all its services. Thread-safe.

    page: PAGE_BYTES of memory that the previous processes wrote to. By default a new one.
    """

    def __init__(
        self, page: "mmap.mmap | bytearray | None" = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._page = bytearray(PAGE_BYTES) if page is None else page
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[int, tuple[bytes, float]] = {}  # slot -> digest, start time
        self._alone: int | None = None  # the slot of the suspect that runs
        # The suspect that waits for the others to end, and the deadline of its claim.
        self._claim: tuple[bytes, float] | None = None
        self._is_frozen = False
        self._suspects = self._read_suspects()
        self.n_found = self._take_over()

    def is_refused(self, digest: bytes) -> bool:
        """Return True if the process ended ENDS_MAX times while this query ran."""
        with self._lock:
            return self._n_ends(digest) >= ENDS_MAX

    def oldest_since(self) -> float:
        """Return when the oldest running query began, inf without any."""
        with self._lock:
            return min((since for _, since in self._running.values()), default=math.inf)

    def begin(self, digest: bytes) -> int | None:
        """Record that a query starts; return its slot, or None if it must wait. A suspect runs alone."""
        now = self._clock()
        with self._lock:
            is_suspect = self._n_ends(digest) > 0
            # safeguard: suspect-gets-its-turn
            if self._claim is not None and self._claim[0] != digest and now < self._claim[1]:
                return None
            if self._alone is not None or (is_suspect and self._running):  # safeguard: suspect-runs-alone
                if is_suspect:
                    self._claim = (digest, now + _CLAIM_S)
                return None
            place = next(number for number in range(len(self._running) + 1) if number not in self._running)
            self._running[place] = (digest, now)
            self._write_digest(place, digest)
            if is_suspect:
                self._alone, self._claim = place, None
            return place

    def end(self, place: int) -> None:
        """Record that a query has ended while the process continues."""
        with self._lock:
            if self._is_frozen:
                return
            digest, _ = self._running.pop(place)
            self._write_digest(place, _NONE)
            if place == self._alone:
                self._alone = None
                self._suspects.pop(digest, None)  # safeguard: cleared-suspect-forgotten
                self._write_suspects()

    def freeze(self) -> None:
        """Keep the current entries: the process ends, and one of these queries may be the cause."""
        with self._lock:
            self._is_frozen = True

    # -- the page --

    def _n_ends(self, digest: bytes) -> int:
        n_ends, at = self._suspects.get(digest, (0, 0.0))
        return n_ends if self._clock() - at < FORGIVEN_AFTER_S else 0

    def _take_over(self) -> int:
        """Turn the queries that ran in the previous process into suspects; return how many."""
        found: set[bytes] = set()  # one query may run several times at a time
        for place in range(RUNNING_MAX):
            found.add(bytes(self._page[place * _DIGEST_BYTES : (place + 1) * _DIGEST_BYTES]))
            self._write_digest(place, _NONE)
        found.discard(_NONE)
        for digest in found:
            n_ends = self._n_ends(digest) + 1
            self._suspects.pop(digest, None)
            self._suspects[digest] = (n_ends, self._clock())
        while len(self._suspects) > SUSPECTS_MAX:
            self._suspects.pop(next(iter(self._suspects)))
        self._write_suspects()
        return len(found)

    def _read_suspects(self) -> dict[bytes, tuple[int, float]]:
        found = (_SUSPECT.unpack_from(self._page, _SUSPECTS_AT + n * _SUSPECT.size) for n in range(SUSPECTS_MAX))
        return {digest: (n_ends, at) for digest, n_ends, at in found if n_ends}

    def _write_suspects(self) -> None:
        entries = [(digest, *rest) for digest, rest in self._suspects.items()]
        entries += [(_NONE, 0, 0.0)] * (SUSPECTS_MAX - len(entries))
        for number, entry in enumerate(entries):
            _SUSPECT.pack_into(self._page, _SUSPECTS_AT + number * _SUSPECT.size, *entry)

    def _write_digest(self, place: int, digest: bytes) -> None:
        if place < RUNNING_MAX:
            self._page[place * _DIGEST_BYTES : (place + 1) * _DIGEST_BYTES] = digest
