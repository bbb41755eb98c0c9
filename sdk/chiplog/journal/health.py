"""What the SDK measures of itself, for `/metrics` and `system` of its agent. Only the sender thread calls this."""

import time
from collections.abc import Callable, Mapping

from chiplog.journal.journal import Journal
from chiplog_schemas.process.backlog import Backlog

PERIOD_S = 10.0  # as of agent and collector: PIPELINE_PERIOD_S


class JournalHealth:
    """The health of one journal and of the thread that sends it.

    counts: returns what the run counts: `lost_device_values`, `rejected` and `errors`. now: monotonic, s.
    """

    def __init__(self, journal: Journal, counts: Callable[[], Mapping[str, int]], now: float) -> None:
        self._journal = journal
        self._counts = counts
        self._backlog = Backlog(now)
        self._due_at = now + PERIOD_S

    def turn(self, now: float, *, is_open: bool) -> dict[str, float]:
        """Note one turn of the sender. Return the values by name if they are due and an agent answers, else nothing."""
        journal = self._journal
        self._backlog.note(journal.next_seq, journal.acked, now)
        if now < self._due_at or not is_open:
            return {}
        self._due_at = now + PERIOD_S
        counts = self._counts()
        return {
            "chiplog.sdk.events": float(journal.next_seq),
            "chiplog.sdk.lost.journal_full": float(journal.dropped),
            "chiplog.sdk.lost.device_values": float(counts["lost_device_values"]),
            "chiplog.sdk.rejected": float(counts["rejected"]),
            "chiplog.sdk.errors": float(counts["errors"]),
            "chiplog.sdk.journal": float(journal.size_bytes),
            "chiplog.sdk.journal_oldest": self._backlog.age_s(now),
            "chiplog.sdk.in_memory": float(journal.unpersisted_events),
            "chiplog.sdk.cpu_time": time.thread_time(),
        }
