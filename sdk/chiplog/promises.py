"""A journal that knows of events that are still to get a seq: their values are on the way from a device.

How many there are stands on the head page, so that whoever adopts the journal of a process that died declares them.
"""

from chiplog.journal import LOCK_WAIT_S, Journal
from chiplog_schemas.events import EventKind, encode
from chiplog_schemas.record import HEADER_BYTES, Kind
from chiplog_schemas.record import encode as frame
from chiplog_schemas.segments import now_us

_PROMISED_MAX = 0xFFFFFFFF


class PromisingJournal(Journal):
    """A journal; see there. A base class, not a part: what is lost gets its seqs under the journal's own lock."""

    _promised = 0

    def promise(self, count: int) -> None:
        """Note on the head page how many events are still to come. One caller at a time."""
        self._promised = min(count, _PROMISED_MAX)
        if (head := self._head) is not None:
            head.promise(self._promised)

    def lose(self, count: int, reason: str) -> bool:
        """Give so many events their seqs and declare them lost. False: not just now. Never blocks long."""
        if not self._lock.acquire(timeout=LOCK_WAIT_S):
            return False
        try:
            if self._inside:
                return False
            self._inside = True
            try:
                self._lose(count, reason)
            finally:
                self._inside = False
            return True
        finally:
            self._lock.release()

    def _lose(self, count: int, reason: str) -> None:
        if self._on_refused is not None:
            return
        seq = self._tail[2]
        lost = encode(EventKind.LOST, now_us(), b"", seq, seq + count - 1, reason)
        if self._drop_first >= 0 or not self._make_room(HEADER_BYTES + len(lost), True):
            # Full: declared with what else is dropped, as soon as there is room.
            self._drop(seq)
            segment, position, _ = self._tail
            self._tail = (segment, position, seq + count)
        else:
            segment, position, _ = self._tail
            end = position + HEADER_BYTES + len(lost)
            segment.memory[position:end] = frame(Kind.EVENT, seq + count, lost)
            self._tail = (segment, end, seq + count + 1)  # at once: what is lost goes with its LOST
        self._write_counters()
