"""The maintenance of a store, in a thread of the publisher: deletions, compaction, removal of what no snapshot names.

Each collector does it for all tables. If two do it at once, Delta refuses one, which looks again later. Of a log that
is gone, its own collector carries out no deletion any more: then the maintenance deletes in its place.
"""

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeGuard

import duckdb

from chiplog_collector.store.compaction import Deletion, compact, delete_rows, read_deletions
from chiplog_collector.store.deletion_requests import DeletionRequest, DeletionRequests
from chiplog_collector.store.delta_store import (
    GONE_S,
    RETIRED_FROM,
    Addition,
    DeltaStore,
    ForeignPositionError,
    StoreError,
)
from chiplog_collector.store.parquet_files import bounded_engine, row_count, write_rows
from chiplog_collector.store.published_tables import DELETIONS, ORDERS

LOOK_S = 60.0  # between two looks; a table gets six pieces in that time. No request while nothing arrives
VACUUM_S = 24 * 3600.0  # a listing of all files
GONE_LOOK_S = 3600.0  # between two looks whether a log is gone
_NAMING = ("files", "media", "artifact_files")  # tables whose rows name contents
_UNSEEN = -2  # below the version of a table that does not exist
# What is deleted of a log that is gone, as its own collector would publish it: producers of runs, their consoles, and
# the runs. $files are those of the tables `producers` and `runs`; the latter have no producer.
_OF_GONE = """WITH seen AS (
        SELECT producer, owner, run_id, number
        FROM read_parquet($files, union_by_name = true, hive_partitioning = false) WHERE log = $log
    ), newest AS (
        FROM seen WHERE producer IS NOT NULL QUALIFY row_number() OVER (PARTITION BY producer ORDER BY number DESC) = 1
    ), members AS (SELECT producer, run_id FROM newest WHERE list_contains($runs, run_id)), found AS (
        FROM members
        UNION SELECT n.producer, m.run_id FROM newest n JOIN members m ON n.owner = m.producer
        UNION SELECT NULL, run_id FROM members
        UNION SELECT NULL, run_id FROM seen WHERE producer IS NULL AND list_contains($runs, run_id)
    )
    SELECT $log::VARCHAR AS log, $number::BIGINT AS number, producer, run_id, NULL::TIMESTAMPTZ AS samples_until,
           now() AS ts, false AS is_request
    FROM found ORDER BY producer, run_id"""
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
        self._gone_at = 0.0
        self._of_gone: set[tuple[str, str]] = set()  # logs and runs of which there is nothing to delete
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
            is_told = self._requests is not None and self._requests.take_news()
            has_new_deletions = False
            if has_news or is_told or now >= self._gone_at or self._seen == _UNSEEN:
                has_new_deletions = self._look_for_deletions()
            if (has_new_deletions or now >= self._gone_at) and self._delete_for_gone(now):
                has_new_deletions = self._look_for_deletions()
            if not (has_news or has_new_deletions):
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
        except (StoreError, OSError, duckdb.Error) as error:  # safeguard: failed-maintenance-tried-again
            self._has_news = True
            self._seen = _UNSEEN
            if not self._is_away:
                what = str(error).partition("\n")[0]
                _log.warning("the store cannot be maintained now: %s; trying again", what)
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

    def _delete_for_gone(self, now: float) -> int:
        self._gone_at = now + GONE_LOOK_S
        return delete_for_gone(self._store, self._deletions, self._scratch, self._of_gone)


def delete_for_gone(
    store: DeltaStore, deletions: Sequence[Deletion], scratch: Path, checked: set[tuple[str, str]]
) -> int:
    """Publish what other logs want deleted of logs that are gone, in their place. Return the number of these logs.

    Each log without a heartbeat for GONE_S is retired first, even if nothing of it is to be deleted. If it returns, it
    has another ID, and its pieces are cut again, with times after those that readers have passed.

    Args:
        store: The store.
        deletions: All of the table `deletions`.
        scratch: A directory for copies, which is removed.
        checked: Logs and runs of which there is nothing to delete; it grows.

    Raises:
        StoreError, OSError.
    """
    requests = [deletion for deletion in deletions if deletion.is_request and deletion.run_id is not None]
    retired, n_logs = store.retired(), 0
    gone_before = store.now() - timedelta(seconds=GONE_S)
    for beat in store.heartbeats():
        answered = beat.content.get("deletions")
        if beat.written_at < gone_before and beat.log not in retired:
            store.retire(beat.log)  # safeguard: gone-log-retired
            retired.add(beat.log)
            _log.info("log %s is gone: silent for 7 days; it is retired", beat.log)
        if beat.log not in retired or not _is_answered(answered):
            continue
        done = {each.run_id for each in deletions if each.log == beat.log and each.number >= RETIRED_FROM}
        # safeguard: answered-request-stays-answered
        open_ones = [each for each in requests if each.log != beat.log and each.number > answered.get(each.log, -1)]
        runs = {str(each.run_id) for each in open_ones if (beat.log, each.run_id) not in checked} - done
        try:
            if runs and _delete_of_gone(store, beat.log, sorted(runs), scratch):
                n_logs += 1
        except duckdb.Error as error:  # safeguard: unreadable-gone-log-stops-nothing
            _log.warning(
                "of log %s, which is gone, nothing can be deleted: %s", beat.log, str(error).partition("\n")[0]
            )
            continue
        checked |= {(beat.log, run_id) for run_id in runs}
    return n_logs


def _is_answered(answered: object) -> TypeGuard[dict[str, int]]:
    """Return True if a heartbeat has the last request by log that was carried out."""
    return isinstance(answered, dict) and all(isinstance(number, int) for number in answered.values())


def _delete_of_gone(store: DeltaStore, log: str, runs: list[str], scratch: Path) -> bool:
    """Publish that runs are deleted in a log that is gone. Return False if it has nothing of them."""
    own = DeltaStore(store.url, log)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        sources = []
        for table in ("producers", "runs"):
            sources += store.fetch_all(table, [f for f in store.snapshot(table) if f.may_have("log", log)], scratch)
        if not sources:
            return False
        before, path = own.position(DELETIONS), scratch / "deletions.parquet"
        number = max(before + 1, RETIRED_FROM)
        given = {"files": sources, "log": log, "number": number, "runs": runs}
        with bounded_engine(scratch / "spill") as engine:
            write_rows(engine.sql(_OF_GONE, params=given), path)
        if not row_count(path):
            return False
        day = store.now().date().isoformat()
        own.publish(Addition(DELETIONS, path, day, before, number, uuid.uuid4().hex[:16]))
        _log.info("deleted in log %s, which is gone: %s", log, ", ".join(runs))
        return True
    except ForeignPositionError as error:  # another collector does the same
        raise StoreError(str(error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
