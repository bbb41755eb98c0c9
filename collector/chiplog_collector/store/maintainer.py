"""The maintenance of a store, in a thread of the publisher: deletions, compaction, removal of what no snapshot names.

Each collector does it for all tables. If two do it at once, Delta refuses one, which looks again later.
"""

import logging
import shutil
import threading
import time
from pathlib import Path

import duckdb

from chiplog_collector.store.compaction import Deletion, compact, delete_rows, read_deletions
from chiplog_collector.store.deletion_requests import DeletionRequest, DeletionRequests
from chiplog_collector.store.delta_store import DeltaStore, StoreError
from chiplog_collector.store.parquet_files import bounded_engine
from chiplog_collector.store.published_tables import DELETIONS, ORDERS

LOOK_S = 60.0  # between two looks; a table gets six pieces in that time. One request, if there is nothing new
VACUUM_S = 24 * 3600.0  # a listing of all files
_NAMING = ("files", "media", "artifact_files")  # tables whose rows name contents
_UNSEEN = -2  # below the version of a table that does not exist
_log = logging.getLogger("chiplog.store")


class Maintainer:
    """Looks after the tables of a store until it is closed. Has handles of its own.

    Args:
        store: The store.
        scratch: A directory on this disk, for one compaction.
        requests: Where what other logs deleted is noted for the index.
    """

    def __init__(self, store: DeltaStore, scratch: Path, requests: DeletionRequests | None = None) -> None:
        self._store = store
        self._scratch = scratch
        self._requests = requests
        self._deletions: list[Deletion] = []
        self._seen = _UNSEEN  # the version of the table of deletions
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
        has_news, self._has_news = self._has_news, False
        is_vacuum = now >= self._vacuum_at
        try:
            has_news = self._look_for_deletions() or has_news
            if not has_news:
                return
            if is_vacuum:
                self._vacuum_at = now + VACUUM_S
            for table, order in ORDERS.items():
                try:
                    self._maintain(table, order, is_vacuum=is_vacuum)
                except duckdb.Error as error:
                    _log.warning("%s cannot be maintained: %s", table, str(error).partition("\n")[0])
                if self._closing.is_set():
                    return
            if is_vacuum and (n_contents := remove_contents(self._store, self._scratch)):
                _log.info("%d contents that no row names were removed", n_contents)
            self._is_away = False
        except (StoreError, OSError) as error:  # safeguard: failed-maintenance-tried-again
            self._has_news = True
            self._seen = _UNSEEN
            if not self._is_away:
                _log.warning("the store cannot be maintained now: %s; trying again", error)
            self._is_away = True

    def _maintain(self, table: str, order: tuple[str, ...], *, is_vacuum: bool) -> None:
        self._delete_rows(table, order)
        if self._closing.is_set():
            return
        done = compact(self._store, table, order, self._scratch)
        if done is not None:
            _log.info("%s of %s: %d pieces merged into %d files", table, done.day, done.n_pieces, done.n_files)
            self._has_news = True  # another day, or more than one turn takes
        if is_vacuum and (n_files := self._store.vacuum(table)):
            _log.info("%s: %d files that no snapshot names were removed", table, n_files)

    def _delete_rows(self, table: str, order: tuple[str, ...]) -> None:
        checked: set[str] = set()
        while not self._closing.is_set():
            n_files = delete_rows(self._store, table, order, self._deletions, self._scratch, checked)
            if n_files is None:
                return
            if n_files:
                _log.info("%s: deleted rows were removed from %d files", table, n_files)

    def _look_for_deletions(self) -> bool:
        """Read what was deleted in any log. Return True if that has changed."""
        version = self._store.version(DELETIONS)
        if version == self._seen:
            return False
        self._deletions = read_deletions(self._store, self._scratch)
        if self._requests is not None:
            self._requests.take(
                DeletionRequest(deletion.log, deletion.number, deletion.run_id)
                for deletion in self._deletions
                if deletion.is_request and deletion.run_id is not None
            )
        self._seen = version
        return bool(self._deletions)


def remove_contents(store: DeltaStore, scratch: Path) -> int:
    """Remove the contents that no row names, nor one that a reader of an old snapshot has; return their number.

    Files of such snapshots exist until a vacuum. Raises StoreError, OSError.
    """
    before = store.kept_since()
    doomed = store.old_contents(before)
    for table in _NAMING if doomed else ():
        for file in store.kept_files(table):
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            try:
                copy = scratch / "rows.parquet"
                store.fetch(table, file, copy)
                with bounded_engine(scratch / "spill") as engine:
                    query = "SELECT DISTINCT sha256 FROM read_parquet(?) WHERE sha256 IS NOT NULL"
                    named = engine.execute(query, [str(copy)]).fetchall()
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            doomed -= {digest for (digest,) in named}  # safeguard: named-content-stays
    return sum(store.remove_content(digest, before) for digest in sorted(doomed))
