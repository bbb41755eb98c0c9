"""A journal that counts promised events: events without a seq, whose values a device is still computing.

The count is on the head page: a process that adopts the journal of a dead process declares them lost.
"""

from chiplog.journal.journal import Journal
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.storage.segments import now_us

_PROMISED_MAX = 0xFFFFFFFF


class PromisingJournal(Journal):
    """A journal with promised events. It is a subclass because lost events get their seqs in the journal's commit."""

    _promised = 0

    def promise(self, count: int) -> None:
        """Write to the head page how many events are promised. One caller at a time."""
        self._promised = min(count, _PROMISED_MAX)
        if (head := self._head) is not None:
            head.promise(self._promised)

    def lose(self, count: int, reason: str) -> None:
        """Assign seqs to `count` events and declare them lost, with other dropped events of a full journal."""
        while True:
            tail = self._tail
            seq = tail[1]
            lost = encode(EventKind.LOST, now_us(), b"", seq, seq + count - 1, reason)
            if self.is_sealed or self._put(tail, lost, urgent=True, skipped=count):
                return
