"""The index process: follows the log, applies it to DuckDB, answers SQL. Started and watched by the receiver.

`python -m chiplog_collector.index DIR --query ADDRESS …`: ends, caught up, when its standard input does.
"""

import logging
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

from chiplog_collector.applier import Applier
from chiplog_collector.database import Database, StaleDatabaseError
from chiplog_collector.receiver import log_id
from chiplog_collector.synced import Synced
from chiplog_schemas.limits import INDEX_FLUSH_INTERVAL_S, INDEX_FLUSH_ROWS
from chiplog_schemas.places import Places, places
from chiplog_schemas.record import Damage, Kind, Record
from chiplog_schemas.segments import LogReader

_READ_BYTES = 8 << 20
_CHECKPOINT_INTERVAL_S = 60.0
_OPEN_WAIT_S = 15.0  # a predecessor may still be writing its last transaction
_WRITE_AGAIN_S = 1.0
_log = logging.getLogger("chiplog.index")


class Follower:
    """Bring a database up to date with a log, transaction by transaction."""

    def __init__(self, database: Database, log_directory: Path) -> None:
        self.database = database
        self._directory = log_directory
        self._begin()

    def _begin(self) -> None:
        """Forget everything that is not in the database, and read on from where it stands."""
        self._applier = Applier(self.database.load())
        self._reader = LogReader(self._directory, self.database.next_number)
        self._safe_number = self.database.next_number  # behind the last receipt taken
        self.read_number = self.database.next_number

    def step(self, limit: int) -> int:
        """Apply what the log holds below `limit`, at most one flush of it; return the events written."""
        rows_before = self._applier.batch.n_points
        while self._applier.batch.n_points - rows_before < INDEX_FLUSH_ROWS:
            items = self._reader.read(limit, _READ_BYTES)
            if not items:
                break
            try:
                for item in items:
                    self._take(item)
            except Exception as error:  # a record that breaks our own code must not stop the index for ever
                _log.exception("a record cannot be applied; its neighbours are applied one by one: %r", error)
                return self._write_one_by_one(limit)
        return self._write()

    def _take(self, item: Record | Damage) -> None:
        number = item.number if isinstance(item, Record) else self.read_number
        self._applier.take(item, number)
        self.read_number = number + 1 if isinstance(item, Record) else number
        if self._applier.is_between_receipts:
            self._safe_number = self.read_number

    def _write(self) -> int:
        if self._safe_number == self.database.next_number:
            return 0
        batch = self._applier.flush()
        try:
            self.database.write(batch, self._applier.state, self._safe_number)
        except (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.FatalException):
            raise  # the disk or the database itself: not the record's fault
        except (duckdb.Error, ValueError, TypeError, OverflowError) as error:
            _log.warning("a flush was refused (%s); its records are applied one by one", str(error).splitlines()[0])
            return self._write_one_by_one(self._safe_number)
        return batch.n_events

    def _write_one_by_one(self, until: int) -> int:
        """Apply each record in a transaction of its own, and set aside the one that cannot be applied."""
        self._begin()
        n_events = 0
        group: list[Record | Damage] = []
        while items := self._reader.read(until, _READ_BYTES):
            for item in items:
                group.append(item)
                if _is_receipt(item):
                    n_events += self._apply_group(group)
                    group = []
        self._begin()
        return n_events

    def _apply_group(self, group: list[Record | Damage]) -> int:
        receipt = group[-1]
        assert isinstance(receipt, Record)
        n_events = 0
        applier = Applier(self.database.load())
        for item in group:
            behind = item.number + 1 if isinstance(item, Record) else self.database.next_number
            try:
                applier.take(item, behind)
                if item is not receipt:
                    applier.take(receipt, behind)
                batch = applier.flush()
                self.database.write(batch, applier.state, behind)
                n_events += batch.n_events
            except (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.FatalException):
                raise
            except Exception as error:  # whatever it is: the position must move past it, and a row must say so
                reason = f"record cannot be applied: {str(error).splitlines()[0] if str(error) else repr(error)}"
                _log.error("record %d is set aside: %s", behind - 1, reason)
                applier = Applier(self.database.load())
                data = bytes(item.payload) if isinstance(item, Record) else b""
                applier.quarantine(behind - 1, item.kind if isinstance(item, Record) else -1, reason, data)
                self.database.write(applier.flush(), applier.state, behind)
        return n_events


def _is_receipt(item: Record | Damage) -> bool:
    return isinstance(item, Record) and item.kind == Kind.RECEIPT


def open_database(place: Places) -> Database:
    """Open the index's file; one that is of another log, too old or damaged is set aside and made anew.

    Raises duckdb.IOException when another process holds the file for longer than a predecessor needs to leave.
    """
    directory = place.collector / "log"
    identifier = log_id(directory) or bytes(16)
    deadline = time.monotonic() + _OPEN_WAIT_S
    while True:
        try:
            return Database(place.index, identifier)
        except StaleDatabaseError as error:
            _set_aside(place.index, str(error))
        except duckdb.IOException as error:
            if "lock" not in str(error).lower():
                _set_aside(place.index, str(error).splitlines()[0])
            elif time.monotonic() > deadline:
                raise
            else:
                time.sleep(0.1)
        except duckdb.Error as error:
            _set_aside(place.index, str(error).splitlines()[0])


def _set_aside(path: Path, reason: str) -> None:
    aside = path.with_name(f"{path.name}.set-aside-{int(time.time())}")
    _log.error("%s; %s is set aside as %s and rebuilt from the log", reason, path, aside.name)
    for suffix in ("", ".wal"):
        source = Path(f"{path}{suffix}")
        if source.exists():
            os.rename(source, f"{aside}{suffix}")


def serve(place: Places, queries: list[str]) -> None:
    """Follow the log and answer SQL until standard input ends; then catch up and close."""
    from chiplog_collector.query import QueryService, lock_down  # a rebuild needs no sockets

    synced = Synced(place.collector / "synced", writable=False)
    database = open_database(place)
    follower = Follower(database, place.collector / "log")
    lock_down(database.connection)
    services = [QueryService(database.connection, address) for address in queries]
    for service in services:
        service.start()
    _log.info("index stands at record %d of %d", database.next_number, synced.get())
    try:
        _follow(follower, synced)
    finally:
        for service in services:
            service.close()
        database.close()
        _log.info("index stopped at record %d", database.next_number)


def _follow(follower: Follower, synced: Synced) -> None:
    checkpoint_at = time.monotonic() + _CHECKPOINT_INTERVAL_S
    dirty = False
    ending = False
    while True:
        started = time.monotonic()
        stood_at = follower.read_number
        try:
            dirty = follower.step(synced.get()) > 0 or dirty
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            _log.error("DuckDB cannot write: %s; trying again", str(error).splitlines()[0])
            if _input_ended(_WRITE_AGAIN_S):
                return
            follower._begin()
            continue
        # Behind, but nothing to read: the log itself is gone or damaged at its end. Waiting is all that is left to do.
        behind = follower.database.next_number < synced.get() and follower.read_number > stood_at
        if ending and not behind:
            return
        if dirty and not behind and started >= checkpoint_at:
            follower.database.checkpoint()
            checkpoint_at, dirty = started + _CHECKPOINT_INTERVAL_S, False
        pause_s = 0.0 if behind else INDEX_FLUSH_INTERVAL_S - (time.monotonic() - started)
        ending = ending or _input_ended(max(0.0, pause_s))


def _input_ended(wait_s: float) -> bool:
    """Wait, and tell whether the receiver closed our standard input."""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def catch_up(place: Places, path: Path, limit: int, on_progress: Callable[[int], None]) -> Database:
    """Build a new database at `path` from the whole log below `limit`. For `chiplog rebuild`."""
    database = Database(path, log_id(place.collector / "log") or bytes(16))
    follower = Follower(database, place.collector / "log")
    while follower.database.next_number < limit:
        before = follower.read_number
        follower.step(limit)
        on_progress(follower.read_number)
        if follower.read_number == before:
            break  # records behind the last receipt were never acknowledged: their agents send them again
    return database


def main(arguments: list[str]) -> None:
    """Entry point of the process."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    root, *rest = arguments
    serve(places(Path(root)), [value for name, value in zip(rest[::2], rest[1::2], strict=True) if name == "--query"])


if __name__ == "__main__":
    main(sys.argv[1:])
