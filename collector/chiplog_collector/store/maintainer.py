"""The maintenance of a store, in a thread of the publisher: deletions, compaction, removal of what no snapshot names.

Each collector does it for all tables. If two do it at once, Delta refuses one, which looks again later.
"""

import logging
import threading
import time
from pathlib import Path

from chiplog_collector.store.compaction import compact, delete_rows, read_deletions
from chiplog_collector.store.delta_store import DeltaStore, StoreError
from chiplog_collector.store.published_tables import ORDERS

LOOK_S = 60.0  # between two looks; a table gets six pieces in that time
VACUUM_S = 24 * 3600.0  # a listing of all files
_log = logging.getLogger("chiplog.store")


class Maintainer:
    """Looks after the tables of a store until it is closed. Has handles of its own.

    Args:
        store: The store.
        scratch: A directory on this disk, for one compaction.
    """

    def __init__(self, store: DeltaStore, scratch: Path) -> None:
        self._store = store
        self._scratch = scratch
        self._has_news = False
        self._closing = threading.Event()
        self._vacuum_at = time.monotonic() + VACUUM_S
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name="chiplog-maintenance", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def note_published(self) -> None:
        """Note that a piece was published: only then is there something to do."""
        self._has_news = True

    def close(self) -> None:
        """End the thread after the table that it works on."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            self.turn(time.monotonic())

    def turn(self, now: float) -> None:
        """Remove deleted rows, compact what has enough pieces; once a day remove old files."""
        if not self._has_news:
            return
        self._has_news = False
        is_vacuum = now >= self._vacuum_at
        try:
            deletions = read_deletions(self._store, self._scratch)
            for table, order in ORDERS.items():
                while not self._closing.is_set():
                    n_files = delete_rows(self._store, table, order, deletions, self._scratch)
                    if n_files is None:
                        break
                    if n_files:
                        _log.info("%s: deleted rows were removed from %d files", table, n_files)
                if self._closing.is_set():
                    return
                done = compact(self._store, table, order, self._scratch)
                if done is not None:
                    _log.info("%s of %s: %d pieces merged into %d files", table, done.day, done.n_pieces, done.n_files)
                    self._has_news = True  # another day, or more than one turn takes
                if is_vacuum and (n_files := self._store.vacuum(table)):
                    _log.info("%s: %d files that no snapshot names were removed", table, n_files)
            if is_vacuum:
                self._vacuum_at = now + VACUUM_S
            self._is_away = False
        except (StoreError, OSError) as error:  # safeguard: failed-maintenance-tried-again
            self._has_news = True
            if not self._is_away:
                _log.warning("the store cannot be maintained now: %s; trying again", error)
            self._is_away = True
