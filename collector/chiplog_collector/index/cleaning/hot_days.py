"""Hot days: facts leave the database once they are published and old enough; queries read them from the store.

They leave up to the end of a day of receipt. Flushes and pieces end there in every database of a log, so a row is
either in the database or in the files that queries read, also after a rebuild.
"""

import logging
from datetime import UTC, datetime, timedelta

from chiplog_collector.index.database import Database
from chiplog_collector.store.outbox import Outbox

INTERVAL_S = 3_600.0
_log = logging.getLogger("chiplog.index")


class HotDays:
    """Removes facts from the database of a collector that publishes. One thread: the writer's.

    Args:
        database: The index.
        outbox: Of its publisher, which notes there what is published.
        url: The store.
        days: Days of receipt that stay, besides today; 0: all.
        is_restored: The store has the first part of the log under a former ID. The series of that part are read there.
    """

    def __init__(self, database: Database, outbox: Outbox, url: str, days: int, *, is_restored: bool = False) -> None:
        self._database = database
        self._outbox = outbox
        self._url = url
        self._days = days
        self._is_restored = is_restored
        self._due_at = 0.0

    def turn(self, now: float, now_us: int) -> None:
        """Remove what is due, in one transaction. Raises duckdb.Error, OSError.

        Args:
            now: CLOCK_MONOTONIC.
            now_us: µs since the epoch.
        """
        if not self._days or now < self._due_at:
            return
        published = self._outbox.published()
        log = self._database.log_id.hex()
        # safeguard: only-published-facts-dropped
        if published is None or published.is_foreign or (published.log, published.url) != (log, self._url):
            return
        self._due_at = now + INTERVAL_S
        today = datetime.fromtimestamp(now_us / 1_000_000, UTC).date()
        until = self._database.day_end(today - timedelta(days=self._days), published.until)
        if until is not None and until > self._database.dropped:
            self._database.drop_facts(until, lacks_series=self._is_restored)
            _log.info("facts up to record %d have left the database; the store has them", until)
