"""The index process: follows the log, applies it to DuckDB, answers SQL. The receiver starts and supervises it.

`python -m chiplog_collector.index DIR --query ADDRESS …` ends, after catching up, when its standard input does. Without
an address it only applies the log.
"""

import itertools
import logging
import mmap
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import zmq

from chiplog_collector.index.changes.block_admission import BlockAdmission
from chiplog_collector.index.changes.change_queue import ChangeQueue
from chiplog_collector.index.changes.edit_requests import EditRequests
from chiplog_collector.index.changes.store_requests import StoreRequests
from chiplog_collector.index.cleaning.checkpoints import Checkpoints
from chiplog_collector.index.cleaning.hot_days import HotDays
from chiplog_collector.index.cleaning.log_cleaner import LogCleaner
from chiplog_collector.index.cleaning.retention import Retention
from chiplog_collector.index.database import Database, is_disk_error
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.index.opening import open_index, quarantine_database, restore_series
from chiplog_collector.memory_limit import bound_memory
from chiplog_collector.query.flush_demand import FLUSH_WAIT_S, QueryDemand
from chiplog_collector.query.sql_guard import ForkedChild
from chiplog_collector.query.suspect_queries import PAGE_BYTES, RunningQueries
from chiplog_collector.store.deletion_requests import DeletionRequests
from chiplog_collector.store.outbox import Outbox
from chiplog_schemas.clock import now_us
from chiplog_schemas.limit_settings import drop_bad_limits, read_limits
from chiplog_schemas.limits import INDEX_LOCK_WAIT_S
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import LockHeldError, take_lock
from chiplog_schemas.query.duckdb_errors import corruption_reason, foreign_path_reason
from chiplog_schemas.query.result_file import ResultSpace
from chiplog_schemas.security.key_files import Keys, KeysError
from chiplog_schemas.security.permissions import Role
from chiplog_schemas.security.zap import open_authenticator
from chiplog_schemas.storage.segment_format import former_owner
from chiplog_schemas.storage.watermark import Watermark

if TYPE_CHECKING:
    from chiplog_collector.spanning.refresher import StoreReader
    from chiplog_collector.store.piece_cutter import PieceCutter

_OPEN_WAIT_S = 5.0  # for a reader to close the file, in an index that only applies the log; a full disk stays full
_MAINTENANCE_AGAIN_S = 300.0  # after the disk, or the memory, refused to look for old data
_WRITE_AGAIN_S = 2.0  # pause between two attempts while DuckDB cannot write, such as on a full disk
_READER = "reader"  # the directory of what is kept of a store
_STORES = ("--store", "--read")
_EXIT_EXPECTED = 1  # exit statuses: DuckDB or the system failed, or …
_EXIT_FAULT = 70  # … chiplog did (EX_SOFTWARE), or …
_EXIT_HELD = 75  # … another index holds the directory (EX_TEMPFAIL)
_log = logging.getLogger("chiplog.index")


def serve(
    place: Paths,
    queries: list[str],
    keys: Keys | None = None,
    page: mmap.mmap | None = None,
    parsers: Sequence[ForkedChild] = (),
    changes: socket.socket | None = None,
    first_wait_s: float = FLUSH_WAIT_S,
    *,
    store: str = "",
    cuts: bool = True,
) -> int:
    """Follow the log and answer SQL until standard input ends; then catch up and close. Return the exit status.

    keys: of this host. If a collector's is among them, readers at TCP addresses need an allowed key.
    page: of the queries that ran in the previous processes.
    parsers: one for each address. first_wait_s: see `QueryDemand`. changes: to the receiver. store: the address of a
    store whose rows are answered too; empty without one. cuts: whether pieces are cut for it.
    """
    from chiplog_collector.query.service import QueryService, lock_down  # imported here: a rebuild needs no sockets

    synced = Watermark(place.collector / "synced", writable=False)
    follower = open_index(place, _input_ended if queries else _bounded_pause())
    if follower is None:
        _log.info("index stopped before it could open %s", place.index)
        return 0
    database = follower.database
    limits = read_limits(os.environ)
    reader = _reader(place, database, store, is_alone=not cuts) if store else None
    cold, directories = (reader.cold, reader.directories) if reader is not None else (None, [])
    lock_down(database.connection, limits.query_memory_bytes, place.files, directories)
    bound_memory(limits.query_memory_bytes)  # safeguard: index-memory-bounded
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    authenticator = open_authenticator(context, keys, Role.COLLECTOR)
    running = RunningQueries(page)  # safeguard: running-queries-survive-crash
    if running.n_found:
        _log.warning("%d queries ran when the last index ended; each runs alone the next time", running.n_found)
    demand = QueryDemand(page, first_wait_s=first_wait_s)
    queue = ChangeQueue(changes, demand.ask, *([reader.elsewhere] if reader is not None else []))
    retention = Retention(database.connection, limits, queue.submit)
    is_restored = former_owner(place.collector / "log") is not None
    outbox = Outbox(place.store)
    hot_days = HotDays(database, outbox, store, limits.hot_days, is_restored=is_restored) if store and cuts else None
    maintenance = _Maintenance(follower, queue, retention, place, store if cuts else "", reader, hot_days)
    space = ResultSpace(place.collector)
    services = [
        QueryService(
            database.connection,
            address,
            authenticator,
            context,
            limits,
            running,
            demand,
            parser,
            place.files,
            queue.submit,
            space,
            cold,
        )
        for address, parser in itertools.zip_longest(queries, parsers)
    ]
    checkpoints = Checkpoints(database.checkpoint, running.oldest_since, database.wal_bytes)
    damage: str | None = None
    is_requested = False

    def must_exit() -> bool:
        return any(service.must_restart or service.is_invalidated for service in services)

    try:
        for service in services:
            service.start()
        _log.info("index is at record %d of %d", database.next_number, synced.get())
        damage = _follow(
            follower,
            synced,
            checkpoints,
            lambda: next((s.damage for s in services if s.damage), None),
            must_exit,
            demand,
            maintenance.after_step,
        )
        if must_exit():
            if any(service.must_restart for service in services):
                _log.error("a query cannot be cancelled; the index restarts at record %d", database.next_number)
            logging.shutdown()
            os._exit(_EXIT_EXPECTED)  # commits are durable, and only the end of the process ends that query
        is_requested = damage is None
    finally:
        if not is_requested:
            running.freeze()
        for service in services:
            service.close(answer=is_requested)  # safeguard: crash-is-no-stop
        maintenance.close()
        demand.close()
        if authenticator is not None:
            authenticator.close()
        context.term()
        database.close()
        _log.info("index stopped at record %d", database.next_number)
    if damage is not None:
        for name in ("cache.duckdb", "cache.duckdb.wal"):  # the damage may be in there; the store has all of it
            (place.store / _READER / name).unlink(missing_ok=True)
        quarantine_database(place.index, damage)
        return _EXIT_EXPECTED  # the receiver then starts one that recreates the file
    return 0


def _reader(place: Paths, database: Database, url: str, *, is_alone: bool) -> "StoreReader":
    os.environ.setdefault("RUST_LOG", "error")  # else credentials that are not there are pages of warnings
    from chiplog_collector.spanning.refresher import StoreReader  # imported here: an index without a store needs none

    directory = place.store / _READER
    log = database.log_id.hex()
    gb_max = read_limits(os.environ).cold_gb
    former = former_owner(place.collector / "log")
    return StoreReader(database.connection, url, log, directory, gb_max, place.files, is_alone=is_alone, former=former)


def _cutter(place: Paths, database: Database, url: str) -> "PieceCutter":
    from chiplog_collector.store.piece_cutter import PieceCutter  # imported here: an index without a store needs none

    cutter = PieceCutter(database.connection, database.log_id, Outbox(place.store), url)
    cutter.start()
    return cutter


class _Maintenance:
    """What the writer does between two transactions: requests, retention, freeing the space of deleted data.

    Beside it, a thread cuts pieces for a store, and another one reads it.
    """

    def __init__(
        self,
        follower: LogFollower,
        queue: ChangeQueue,
        retention: Retention,
        place: Paths,
        store: str = "",
        reader: "StoreReader | None" = None,
        hot_days: HotDays | None = None,
    ) -> None:
        self._follower = follower
        self._queue = queue
        self._retention = retention
        self._hot_days = hot_days
        self._place, self._store = place, store
        self._admission = BlockAdmission(queue.submit)
        self._cleaner = LogCleaner(place.collector / "log", place.files, may_trim=hot_days is not None)
        self._cutter = _cutter(place, follower.database, store) if store else None
        self._requests = None
        if store:
            requests = DeletionRequests(place.store, follower.database.log_id.hex())
            self._requests = StoreRequests(requests, queue.submit, self._applied)
            if reader is not None:
                reader.note_deletions = requests.note_news
        self._edits = None
        if store and reader is not None:
            self._edits = EditRequests(reader.edits, queue.submit)
            reader.note_edits = self._edits.note_news
        self._reader = reader
        if reader is not None:
            reader.start()
        self._not_before = 0.0  # retention and cleaning; after an error of the disk

    def _applied(self) -> int:
        return self._follower.database.next_number - 1

    def after_step(self, is_behind: bool) -> None:
        """Continue. is_behind: there is more of the log to apply."""
        state, database, now = self._follower.state, self._follower.database, time.monotonic()
        failed = self._follower.failed_changes
        self._queue.turn(state, database.next_number, now, failed=failed, is_behind=is_behind)
        failed.clear()
        if is_behind or now < self._not_before:
            return
        try:
            self._admission.turn(state, now)
            self._retention.turn(state.rolled_until, now, now_us())
            if self._hot_days is not None:
                self._hot_days.turn(now, now_us())
            if database.lacks_series and self._store:
                restore_series(self._follower, self._place, self._store)
                state = self._follower.state
            published = -1 if database.lacks_series else database.dropped
            self._cleaner.turn(state, database.orphaned_contents, now, published, database.refused_records)
            if self._requests is not None:
                self._requests.turn(state, now)
            if self._edits is not None:
                self._edits.turn(state, now)
        except (duckdb.Error, OSError, RuntimeError) as error:  # safeguard: failing-chores-wait
            if isinstance(error, duckdb.Error) and not is_disk_error(error):
                raise
            _log.warning("old data cannot be looked for: %s; trying again later", str(error).partition("\n")[0])
            self._not_before = now + _MAINTENANCE_AGAIN_S

    def close(self) -> None:
        """End what runs in the background."""
        if self._cutter is not None:
            self._cutter.close()
        if self._reader is not None:
            self._reader.close()
        self._cleaner.close()


def _follow(
    follower: LogFollower,
    synced: Watermark,
    checkpoints: Checkpoints,
    damage_met: Callable[[], str | None],
    must_exit: Callable[[], bool],
    demand: QueryDemand,
    after_step: Callable[[bool], None] = lambda is_behind: None,
) -> str | None:
    """Apply the log until standard input ends or the process must exit. Return a line when the file proves damaged.

    after_step: called after each step, with whether the database lacks something of the log.
    """
    ending = needs_reload = behind = False
    while True:
        started = time.monotonic()
        if (damage := damage_met()) is not None:
            return damage
        if must_exit():
            return None
        number = demand.begin()
        goal = synced.get()
        try:
            if needs_reload:
                follower.reload()
                needs_reload = False
            if not behind:  # right before a commit: most open queries began after the previous one
                checkpoints.turn(started)
            behind = (ending or not checkpoints.holds_writer(started)) and _step(follower, synced, checkpoints)
        except duckdb.Error as error:
            if (damage := _damage_in(error)) is not None:
                return damage
            if not needs_reload:
                _log.error("DuckDB cannot write: %s; trying again", str(error).partition("\n")[0])
            needs_reload = True
            demand.flushed(number, is_behind=True)  # safeguard: unwritable-index-answers
            after_step(True)
            if ending or _input_ended(_WRITE_AGAIN_S):
                return None
            continue
        demand.note_applied(follower.database.next_number)
        # Also while the writer is held: what is not applied yet decides about what may be removed.
        after_step(follower.database.next_number < goal)  # safeguard: chores-only-when-caught-up
        if not behind:
            if ending:
                return None
            demand.flushed(number)
        pause_s = 0.0 if behind else demand.flush_interval_s - (time.monotonic() - started)
        ending = ending or _input_ended(max(0.0, pause_s), demand)


def _damage_in(error: duckdb.Error) -> str | None:
    """Return why an error proves the file damaged; None if the disk refuses to be written. Raises any other error."""
    damage = corruption_reason(error)
    if damage is None and not is_disk_error(error):
        raise error
    return damage


def _step(follower: LogFollower, synced: Watermark, checkpoints: Checkpoints) -> bool:
    """Apply one flush of the log; return True if there is more."""
    stood_at, next_number = follower.read_number, follower.database.next_number
    follower.step(synced.get())
    follower.report_refused()
    if follower.database.next_number > next_number:
        checkpoints.written(time.monotonic())
    # Behind, but without anything to read: the end of the log is gone or damaged. The index can only wait.
    return follower.database.next_number < synced.get() and follower.read_number > stood_at


def _input_ended(wait_s: float, demand: QueryDemand | None = None) -> bool:
    """Wait, at most until a query demands a flush. Return True if the receiver has closed standard input."""
    readable, _, _ = select.select([sys.stdin, *([demand] if demand is not None else [])], [], [], wait_s)
    return sys.stdin in readable and not os.read(sys.stdin.fileno(), 1)


def _bounded_pause() -> Callable[[float], bool]:
    """Build the pause between two attempts to open the file. It returns True after _OPEN_WAIT_S."""
    until = time.monotonic() + _OPEN_WAIT_S

    def pause(wait_s: float) -> bool:
        time.sleep(wait_s)
        return time.monotonic() > until

    return pause


def _open_page(descriptor: int) -> mmap.mmap:
    page = mmap.mmap(descriptor, PAGE_BYTES)
    os.close(descriptor)
    return page


def main(arguments: list[str]) -> int:
    """Run the process.

    `--keys DIR`: of this host. `--after STATUS`: exit status of the previous process. `--page DESCRIPTOR`: see
    `running`. `--first-wait SECONDS`: how long queries wait until the whole log is applied; ignored after a crash.
    `--changes DESCRIPTOR`: a socket to the receiver, for records with changes.
    `--store URL`: cut pieces for it, and answer with its rows, too. `--read URL`: only the latter.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    root, *rest = arguments
    options = list(zip(rest[::2], rest[1::2], strict=True))
    queries = [value for name, value in options if name == "--query"]
    previous = next((int(value) for name, value in options if name == "--after"), 0)
    try:
        # A collector has checked them; a reader that only applies the log has not.
        limits = drop_bad_limits(os.environ, lambda message: _log.warning("%s", message))
        # Before this process has keys, files, DuckDB connections or threads.
        # safeguard: first-parser-forked
        parsers = [ForkedChild(limits.query_memory_bytes) for _ in queries]
        keys = next((Keys(Path(value)) for name, value in options if name == "--keys"), None)
        page = next((_open_page(int(value)) for name, value in options if name == "--page"), None)
        first_wait_s = next((float(value) for name, value in options if name == "--first-wait"), FLUSH_WAIT_S)
        if previous not in (0, _EXIT_HELD):  # safeguard: held-index-is-no-crash
            first_wait_s = FLUSH_WAIT_S
        channel = next((socket.socket(fileno=int(value)) for name, value in options if name == "--changes"), None)
        store, cuts = next(((value, name == "--store") for name, value in options if name in _STORES), ("", False))
        place = paths_for_root(Path(root))
        if reason := foreign_path_reason(place.index):
            raise OSError(f"{reason}; move the directory")  # the receiver keeps the events
        # Two that create or replace the file at the same time would mix it with the write-ahead log of the other.
        lock = take_lock(place.index_lock, patient_s=INDEX_LOCK_WAIT_S)  # safeguard: one-index-per-directory
        try:
            return serve(place, queries, keys, page, parsers, channel, first_wait_s, store=store, cuts=cuts)
        finally:
            lock.release()
    except LockHeldError as error:
        _log.error("index ends: %s", error)
        return _EXIT_HELD
    except (duckdb.Error, OSError, KeysError) as error:
        _log.error("index ends: %s", str(error).partition("\n")[0])
        return _EXIT_EXPECTED
    except Exception as error:
        # The receiver restarts the index every few seconds; one traceback is enough.
        is_known = previous == _EXIT_FAULT
        _log.error("index ends because of an internal error: %r", error, exc_info=None if is_known else error)
        return _EXIT_FAULT
