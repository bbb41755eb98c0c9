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

import duckdb
import zmq

from chiplog_collector.index.apply.applier import Applier
from chiplog_collector.index.apply.state import State
from chiplog_collector.index.changes.change_queue import ChangeQueue
from chiplog_collector.index.cleaning.checkpoints import Checkpoints
from chiplog_collector.index.cleaning.log_cleaner import LogCleaner
from chiplog_collector.index.cleaning.retention import Retention
from chiplog_collector.index.database import Database, StaleDatabaseError, is_disk_error
from chiplog_collector.memory_limit import bound_memory
from chiplog_collector.query.flush_demand import FLUSH_WAIT_S, QueryDemand
from chiplog_collector.query.sql_guard import ForkedChild
from chiplog_collector.query.suspect_queries import PAGE_BYTES, RunningQueries
from chiplog_collector.refusals import NAME as REFUSED_NAME
from chiplog_collector.refusals import Refused, write_refused
from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.backoff import Backoff
from chiplog_schemas.clock import now_us
from chiplog_schemas.limit_settings import read_bounds
from chiplog_schemas.limits import INDEX_FLUSH_ROWS, INDEX_LOCK_WAIT_S
from chiplog_schemas.model.codes import QuarantineCode
from chiplog_schemas.model.receipt import decode_receipt
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import LockHeldError, take_lock
from chiplog_schemas.query.duckdb_errors import corruption_reason, foreign_path_reason
from chiplog_schemas.query.result_file import ResultSpace
from chiplog_schemas.security.key_files import Keys, KeysError
from chiplog_schemas.security.permissions import Role
from chiplog_schemas.security.zap import open_gate
from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.record import CorruptRange, Kind, Record
from chiplog_schemas.storage.segment_format import log_owner
from chiplog_schemas.storage.watermark import Watermark

_READ_BYTES = 8 << 20
_FLUSH_BYTES = 32 << 20  # of the log per transaction: 200,000 rows of long texts would exhaust the memory
_SET_ASIDE_MAX = 2  # files kept for inspection: each may be as large as the index
_OPEN_WAIT_S = 5.0  # for a reader to close the file, in an index that only applies the log; a full disk stays full
_CHORES_AGAIN_S = 300.0  # after the disk, or the memory, refused to look for old data
_AGAIN_MIN_S = 0.1  # a predecessor is about to exit, or a client to close the file …
_AGAIN_MAX_S = 2.0  # … or the disk is full: the longest pause between two attempts
_EXIT_EXPECTED = 1  # exit statuses: DuckDB or the system failed, or …
_EXIT_FAULT = 70  # … chiplog did (EX_SOFTWARE), or …
_EXIT_HELD = 75  # … another index holds the directory (EX_TEMPFAIL)
_log = logging.getLogger("chiplog.index")


class LogFollower:
    """Brings a database up to date with a log, transaction by transaction."""

    def __init__(self, database: Database, log_directory: Path) -> None:
        self.database = database
        self._directory = log_directory
        self._reader = LogReader(log_directory)
        self._refused_changed = True
        self.reload()

    def close(self) -> None:
        """Close the log."""
        self._reader.close()

    def reload(self) -> None:
        """Drop everything that is not in the database, and continue at its position."""
        self._applier = Applier(self.database.load(), self._read_again)
        self._read_from(self.database.next_number)
        self._safe_number = self.database.next_number  # after the last receipt applied
        self.read_number = self.database.next_number
        self._expected: int | None = self.read_number  # number of the next record; None after damage
        self._damage: list[CorruptRange] = []  # until the record after it: the position is one of records
        self.records_read = 0
        self.n_damages_read = 0
        self.first_damage: str | None = None  # since `reload`, as text

    def _read_from(self, number: int) -> None:
        self._reader.close()
        self._reader = LogReader(self._directory, number)

    def _read(self, limit: int) -> list[Record | CorruptRange]:
        """Return the next items of the log. Damage and missing numbers come before the record that follows them."""
        items: list[Record | CorruptRange] = []
        while not items and (found := self._reader.read(limit, _READ_BYTES)):
            for item in found:
                if isinstance(item, CorruptRange):
                    self._damage.append(item)
                    self._expected = None
                    continue
                if self._expected is not None and item.number > self._expected:
                    gone = f"records {self._expected}..{item.number - 1} are not there"
                    self._damage.append(CorruptRange(0, 0, gone))
                self._expected = item.number + 1
                self.records_read += 1
                if self._damage:
                    self._note_damage(self._damage)
                    items += self._damage
                    self._damage = []
                items.append(item)
        return items

    def _read_again(self, number: int) -> Record | None:
        reader = LogReader(self._directory, number)
        try:
            found = reader.read(number + 1, 1)
        finally:
            reader.close()
        return next((item for item in found if isinstance(item, Record) and item.number == number), None)

    @property
    def state(self) -> State:
        """The dimensions as the database has them, and what was applied and is not written yet."""
        return self._applier.state

    @property
    def refused(self) -> dict[bytes, Refused]:
        """The number of events that are kept without being applied, per sender."""
        kept = self._applier.state.kept.items()
        return {s: Refused(sum(n for _, n in records.values()), len(records)) for s, records in kept if records}

    def report_refused(self) -> None:
        """Write what is kept for the receiver, if it changed."""
        if self._refused_changed:
            self._refused_changed = False
            write_refused(self._directory.parent / REFUSED_NAME, self.refused)

    def _note_damage(self, damage: Sequence[CorruptRange]) -> None:
        self.n_damages_read += len(damage)
        if self.first_damage is None:
            self.first_damage = damage[0].reason

    def step(self, limit: int) -> int:
        """Apply the log below `limit`, at most one flush of it; return the number of events written."""
        rows_before, n_bytes = self._applier.batch.n_rows, 0
        while self._applier.batch.n_rows - rows_before < INDEX_FLUSH_ROWS and n_bytes < _FLUSH_BYTES:
            items = self._read(limit)
            if not items:
                break
            n_bytes += sum(len(item.payload) for item in items if isinstance(item, Record))
            try:
                for item in items:
                    self._take(item)
                    if self._applier.must_flush:  # safeguard: thinning-ends-flush
                        self._rewind()
                        return self._write()
            except Exception as error:  # a record that triggers a bug must not stop the index forever
                if _is_environment_error(error):
                    raise
                _log.exception("a record cannot be applied; its neighbours are applied one by one: %r", error)
                return self._write_one_by_one(limit)
        return self._write()

    def _rewind(self) -> None:
        """Read again what follows the last receipt that was applied."""
        self._read_from(self._safe_number)
        self._expected = self.read_number = self._safe_number
        self._damage = []

    def _take(self, item: Record | CorruptRange) -> None:
        number = item.number if isinstance(item, Record) else self.read_number
        self._applier.apply(item, number)
        self.read_number = number + 1 if isinstance(item, Record) else number
        if self._applier.is_between_receipts:
            self._safe_number = self.read_number

    def _write(self) -> int:
        if self._safe_number == self.database.next_number:
            return 0
        batch = self._applier.flush()
        self._refused_changed = self._refused_changed or "refused" in batch.rows
        try:
            self.database.write(batch, self._applier.state, self._safe_number)
        except (duckdb.Error, ValueError, TypeError, OverflowError) as error:
            if _is_environment_error(error):
                raise
            _log.warning("a flush was refused (%s); its records are applied one by one", str(error).splitlines()[0])
            return self._write_one_by_one(self._safe_number)
        self.database.sort_facts()
        return batch.n_events

    def _write_one_by_one(self, until: int) -> int:
        """Apply each record in a separate transaction, and put the one that fails into quarantine."""
        self.reload()
        n_events = 0
        group: list[Record | CorruptRange] = []
        while items := self._read(until):
            for item in items:
                group.append(item)
                if _is_receipt(item):
                    n_events += self._apply_group(group)
                    group = []
        self.reload()
        return n_events

    def _apply_group(self, group: list[Record | CorruptRange]) -> int:
        receipt = group[-1]
        assert isinstance(receipt, Record)
        n_events = 0
        applier = Applier(self.database.load(), self._read_again)
        numbers = [item.number for item in group[:-1] if isinstance(item, Record)]
        covers = decode_receipt(receipt.payload, receipt.number)
        unfinished = covers.uncommitted(numbers) if covers is not None else frozenset()
        for item in group:
            if isinstance(item, Record) and item.number in unfinished:
                continue
            behind = item.number + 1 if isinstance(item, Record) else self.database.next_number
            try:
                applier.apply(item, behind)
                if item is not receipt:
                    applier.apply(receipt, behind)
                batch = applier.flush()
                self.database.write(batch, applier.state, behind)
                n_events += batch.n_events
            except Exception as error:  # whatever it is, the position must move past it, and a row must report it
                if _is_environment_error(error):
                    raise
                reason = f"record cannot be applied: {str(error).splitlines()[0] if str(error) else repr(error)}"
                _log.error("record %d is set aside: %s", behind - 1, reason)
                applier = Applier(self.database.load(), self._read_again)
                data = bytes(item.payload) if isinstance(item, Record) else b""
                kind = item.kind if isinstance(item, Record) else -1
                applier.quarantine(behind - 1, kind, QuarantineCode.RECORD_FAILED, reason, data)
                self.database.write(applier.flush(), applier.state, behind)
        return n_events


def _is_receipt(item: Record | CorruptRange) -> bool:
    return isinstance(item, Record) and item.kind == Kind.RECEIPT


def _is_environment_error(error: Exception) -> bool:
    """Return True if an error is of the disk, of the memory or of the database itself."""
    return (
        is_disk_error(error)
        or isinstance(error, MemoryError | duckdb.OutOfMemoryException | duckdb.FatalException)
        or corruption_reason(error) is not None
    )


# -- opening --


def open_index(place: Paths, input_ended: Callable[[float], bool]) -> LogFollower | None:
    """Open the index's file and load its state. None when standard input ends before that is possible.

    A file that is proven damaged, or of another log or migration, is set aside and recreated. Any other failure may be
    temporary, such as a full disk or another process that has the file open, so the function retries.
    """
    backoff = Backoff(_AGAIN_MIN_S, _AGAIN_MAX_S)
    while True:
        try:
            is_new = not place.index.exists()
            if is_new:
                _create(place)
            memory_bytes = read_bounds(os.environ).query_memory_bytes
            log_id = log_owner(place.collector / "log") or bytes(16)
            database = Database(place.index, log_id, has_views=is_new, memory_bytes=memory_bytes)
            try:
                return LogFollower(database, place.collector / "log")
            except BaseException:
                database.close()
                raise
        except StaleDatabaseError as error:
            quarantine_database(place.index, str(error))
        except (duckdb.Error, OSError) as error:
            if damage := corruption_reason(error):
                quarantine_database(place.index, damage)  # safeguard: damaged-database-rebuilt
                continue
            if backoff.wait_s == _AGAIN_MIN_S:  # the first failure
                _log.error("%s cannot be opened: %s; trying again", place.index, str(error).partition("\n")[0])
            if input_ended(backoff.next_s()):
                return None


def _create(place: Paths) -> None:
    """Create an empty index under a temporary name: a file that a full disk truncates must not look damaged."""
    new = place.index.with_name(f"{place.index.stem}-new.duckdb")  # safeguard: new-index-beside-old
    for path in (new, Path(f"{new}.wal"), Path(f"{place.index}.wal")):  # the last: of a file that was removed
        path.unlink(missing_ok=True)
    Database(new, log_owner(place.collector / "log") or bytes(16)).close()
    os.rename(new, place.index)
    sync_directory(place.collector)  # else a power failure may leave the old file next to a new write-ahead log


def quarantine_database(path: Path, reason: str) -> None:
    """Move a file and its write-ahead log aside, and log it. Raises OSError."""
    aside = move_to_quarantine(path)
    _log.error("%s; %s is set aside as %s and rebuilt from the log", reason, path, aside.name)


def move_to_quarantine(path: Path) -> Path:
    """Move a file and its write-ahead log to a name without a previous file; return the new path. Raises OSError."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    names = (path.with_name(f"{path.name}.set-aside-{stamp}-{count}") for count in itertools.count())
    aside = next(name for name in names if not name.exists() and not Path(f"{name}.wal").exists())
    for suffix in (".wal", ""):  # the file last: without its write-ahead log it is only older
        source = Path(f"{path}{suffix}")
        if source.exists():
            os.rename(source, f"{aside}{suffix}")
    _remove_old(path)
    return aside


def _remove_old(path: Path) -> None:
    """Keep the newest files that were set aside, and remove the others."""
    found = {str(old).removesuffix(".wal") for old in path.parent.glob(f"{path.name}.set-aside-*")}
    for old in sorted(found, key=_set_aside_order)[:-_SET_ASIDE_MAX]:
        _log.warning("%s is removed: only the newest %d files set aside are kept", old, _SET_ASIDE_MAX)
        for suffix in ("", ".wal"):
            Path(f"{old}{suffix}").unlink(missing_ok=True)


def _set_aside_order(name: str) -> tuple[str, int]:
    stamp, _, count = name.rpartition("set-aside-")[2].partition("-")
    return stamp, int(count) if count.isdecimal() else 0


# -- the process --


def serve(
    place: Paths,
    queries: list[str],
    keys: Keys | None = None,
    page: mmap.mmap | None = None,
    parsers: Sequence[ForkedChild] = (),
    changes: socket.socket | None = None,
    first_wait_s: float = FLUSH_WAIT_S,
) -> int:
    """Follow the log and answer SQL until standard input ends; then catch up and close. Return the exit status.

    keys: of this host. If a collector's is among them, readers at TCP addresses need an allowed key.
    page: of the queries that ran in the previous processes.
    parsers: one for each address. first_wait_s: see `QueryDemand`. changes: to the receiver.
    """
    from chiplog_collector.query.service import QueryService, lock_down  # imported here: a rebuild needs no sockets

    synced = Watermark(place.collector / "synced", writable=False)
    follower = open_index(place, _input_ended if queries else _bounded_pause())
    if follower is None:
        _log.info("index stopped before it could open %s", place.index)
        return 0
    database = follower.database
    bounds = read_bounds(os.environ, lambda message: _log.warning("%s", message))
    lock_down(database.connection, bounds.query_memory_bytes, place.files)
    bound_memory(bounds.query_memory_bytes)  # safeguard: index-memory-bounded
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    gate = open_gate(context, keys, Role.COLLECTOR)
    running = RunningQueries(page)  # safeguard: running-queries-survive-crash
    if running.n_found:
        _log.warning("%d queries ran when the last index ended; each runs alone the next time", running.n_found)
    demand = QueryDemand(page, first_wait_s=first_wait_s)
    queue = ChangeQueue(changes, demand.ask)
    chores = _Chores(follower, queue, Retention(database.connection, bounds, queue.submit), place)
    space = ResultSpace(place.collector)
    services = [
        QueryService(
            database.connection,
            address,
            gate,
            context,
            bounds,
            running,
            demand,
            parser,
            place.files,
            queue.submit,
            space,
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
            chores.after_step,
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
        chores.close()
        demand.close()
        if gate is not None:
            gate.close()
        context.term()
        database.close()
        _log.info("index stopped at record %d", database.next_number)
    if damage is not None:
        quarantine_database(place.index, damage)
        return _EXIT_EXPECTED  # the receiver then starts one that recreates the file
    return 0


class _Chores:
    """What the writer does between two transactions: requests, retention, freeing the space of deleted data."""

    def __init__(self, follower: LogFollower, queue: ChangeQueue, retention: Retention, place: Paths) -> None:
        self._follower = follower
        self._queue = queue
        self._retention = retention
        self._cleaner = LogCleaner(place.collector / "log", place.files)
        self._not_before = 0.0  # retention and cleaning; after an error of the disk

    def after_step(self, is_behind: bool) -> None:
        """Continue. is_behind: there is more of the log to apply."""
        state, database, now = self._follower.state, self._follower.database, time.monotonic()
        self._queue.turn(state, database.next_number, now, is_behind=is_behind)
        if is_behind or now < self._not_before:
            return
        try:
            self._retention.turn(state.rolled_until, now, now_us())
            self._cleaner.turn(state, database.orphaned_contents, now)
        except (duckdb.Error, OSError, RuntimeError) as error:  # safeguard: failing-chores-wait
            if isinstance(error, duckdb.Error) and not is_disk_error(error):
                raise
            _log.warning("old data cannot be looked for: %s; trying again later", str(error).partition("\n")[0])
            self._not_before = now + _CHORES_AGAIN_S

    def close(self) -> None:
        """End what runs in the background."""
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
            if ending or _input_ended(_AGAIN_MAX_S):
                return None
            continue
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


def rebuild_into(place: Paths, path: Path, limit: int, on_progress: Callable[[int], None]) -> LogFollower:
    """Build a new database at `path` from the whole log below `limit`, for `chiplog rebuild`."""
    memory_bytes = read_bounds(os.environ).query_memory_bytes
    database = Database(path, log_owner(place.collector / "log") or bytes(16), memory_bytes=memory_bytes)
    follower = LogFollower(database, place.collector / "log")
    while follower.database.next_number < limit:
        before = follower.read_number
        follower.step(limit)
        on_progress(follower.read_number)
        if follower.read_number == before:
            break  # records after the last receipt were never acknowledged: their agents send them again
    return follower


def _open_page(descriptor: int) -> mmap.mmap:
    page = mmap.mmap(descriptor, PAGE_BYTES)
    os.close(descriptor)
    return page


def main(arguments: list[str]) -> int:
    """Run the process.

    `--keys DIR`: of this host. `--after STATUS`: exit status of the previous process. `--page DESCRIPTOR`: see
    `running`. `--first-wait SECONDS`: how long queries wait until the whole log is applied; ignored after a crash.
    `--changes DESCRIPTOR`: a socket to the receiver, for records with changes.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    root, *rest = arguments
    options = list(zip(rest[::2], rest[1::2], strict=True))
    queries = [value for name, value in options if name == "--query"]
    previous = next((int(value) for name, value in options if name == "--after"), 0)
    try:
        # Before this process has keys, files, DuckDB connections or threads.
        # safeguard: first-parser-forked
        parsers = [ForkedChild(read_bounds(os.environ).query_memory_bytes) for _ in queries]
        keys = next((Keys(Path(value)) for name, value in options if name == "--keys"), None)
        page = next((_open_page(int(value)) for name, value in options if name == "--page"), None)
        first_wait_s = next((float(value) for name, value in options if name == "--first-wait"), FLUSH_WAIT_S)
        if previous not in (0, _EXIT_HELD):  # safeguard: held-index-is-no-crash
            first_wait_s = FLUSH_WAIT_S
        channel = next((socket.socket(fileno=int(value)) for name, value in options if name == "--changes"), None)
        place = paths_for_root(Path(root))
        if reason := foreign_path_reason(place.index):
            raise OSError(f"{reason}; move the directory")  # the receiver keeps the events
        # Two that create or replace the file at the same time would mix it with the write-ahead log of the other.
        lock = take_lock(place.index_lock, patient_s=INDEX_LOCK_WAIT_S)  # safeguard: one-index-per-directory
        try:
            return serve(place, queries, keys, page, parsers, channel, first_wait_s)
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
