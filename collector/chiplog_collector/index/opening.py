"""Open the index's file, or build it from the log: a damaged or foreign file is set aside."""

import itertools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

from chiplog_collector.index.database import Database, StaleDatabaseError
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.store.outbox import Outbox
from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.backoff import Backoff
from chiplog_schemas.limit_settings import read_limits
from chiplog_schemas.paths import Paths
from chiplog_schemas.query.duckdb_errors import corruption_reason
from chiplog_schemas.storage.segment_format import former_owner, log_owner

_SET_ASIDE_MAX = 2  # files kept for inspection: each may be as large as the index
_AGAIN_MIN_S = 0.1  # a predecessor is about to exit, or a client to close the file …
_AGAIN_MAX_S = 2.0  # … or the disk is full: the longest pause between two attempts
_log = logging.getLogger("chiplog.index")


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
            memory_bytes = read_limits(os.environ).query_memory_bytes
            log_id = log_owner(place.collector / "log") or bytes(16)
            database = Database(place.index, log_id, has_views=is_new, memory_bytes=memory_bytes)
            try:
                return LogFollower(database, place.collector / "log", _published_ends(place))
            except BaseException:
                database.close()
                raise
        except StaleDatabaseError as error:
            quarantine_database(place.index, str(error), logging.WARNING)
        except (duckdb.Error, OSError) as error:
            if damage := corruption_reason(error):
                quarantine_database(place.index, damage)  # safeguard: damaged-database-rebuilt
                continue
            if backoff.wait_s == _AGAIN_MIN_S:  # the first failure
                _log.error("%s cannot be opened: %s; trying again", place.index, str(error).partition("\n")[0])
            if input_ended(backoff.next_s()):
                return None


def _published_ends(place: Paths) -> set[int]:
    """Return the records that end a piece: of those in the store, and of those that wait for it."""
    outbox = Outbox(place.store)
    waiting = outbox.ends()  # first: a piece is noted as published before it is removed
    try:
        published = outbox.published()
    except OSError as error:  # safeguard: damaged-note-stops-no-index
        _log.warning("%s", error)
        published = None
    # safeguard: flush-ends-where-pieces-end
    former = former_owner(place.collector / "log")
    before = () if former is None else (former[1],)
    return {*waiting, *before, *(published.positions.values() if published is not None else ())}


def _create(place: Paths) -> None:
    """Create an empty index under a temporary name: a file that a full disk truncates must not look damaged."""
    new = place.index.with_name(f"{place.index.stem}-new.duckdb")  # safeguard: new-index-beside-old
    for path in (new, Path(f"{new}.wal"), Path(f"{place.index}.wal")):  # the last: of a file that was removed
        path.unlink(missing_ok=True)
    Database(new, log_owner(place.collector / "log") or bytes(16)).close()
    os.rename(new, place.index)
    sync_directory(place.collector)  # else a power failure may leave the old file next to a new write-ahead log


def quarantine_database(path: Path, reason: str, level: int = logging.ERROR) -> None:
    """Move a file and its write-ahead log aside, and log it: as an error, unless no file is damaged. Raises OSError."""
    aside = move_to_quarantine(path)
    _log.log(level, "%s; %s is set aside as %s and rebuilt from the log", reason, path, aside.name)


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


def rebuild_into(place: Paths, path: Path, limit: int, on_progress: Callable[[int], None]) -> LogFollower:
    """Build a new database at `path` from the whole log below `limit`, for `chiplog rebuild`."""
    memory_bytes = read_limits(os.environ).query_memory_bytes
    database = Database(path, log_owner(place.collector / "log") or bytes(16), memory_bytes=memory_bytes)
    follower = LogFollower(database, place.collector / "log", _published_ends(place))
    while follower.database.next_number < limit:
        before = follower.read_number
        follower.step(limit)
        on_progress(follower.read_number)
        if follower.read_number == before:
            break  # records after the last receipt were never acknowledged: their agents send them again
    return follower


def restore_series(follower: LogFollower, place: Paths, url: str) -> None:
    """Complete the rollups of facts that the log no longer has, from its store. Raises OSError, duckdb.Error."""
    from chiplog_collector.spanning.published_series import read_series
    from chiplog_collector.store.delta_store import StoreError  # imported here: an index without a store needs neither

    database = follower.database
    try:
        found = read_series(url, database.log_id.hex(), database.dropped, place.store)
    except StoreError as error:
        raise OSError(f"the store {url} has facts that left the log, and cannot be read: {error}") from error
    follower.restore_series(found)
