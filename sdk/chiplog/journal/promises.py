"""A journal that knows of events that are still to get a seq: their values are on the way from a device.

How many there are stands on the head page, so that whoever adopts the journal of a process that died declares them.
"""

from chiplog.journal.journal import Journal
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.storage.segments import now_us

_PROMISED_MAX = 0xFFFFFFFF


class PromisingJournal(Journal):
    """A journal; see there. A base class, not a part: what is lost gets its seqs by the journal's own commit."""

    _promised = 0

    def promise(self, count: int) -> None:
        """Note on the head page how many events are still to come. One caller at a time."""
        self._promised = min(count, _PROMISED_MAX)
        if (head := self._head) is not None:
            head.promise(self._promised)

    def lose(self, count: int, reason: str) -> None:
        """Give so many events their seqs and declare them lost: with what else is dropped where the journal is full."""
        while True:
            tail = self._tail
            seq = tail[1]
            lost = encode(EventKind.LOST, now_us(), b"", seq, seq + count - 1, reason)
            if self.is_sealed or self._put(tail, lost, urgent=True, skipped=count):
                return
