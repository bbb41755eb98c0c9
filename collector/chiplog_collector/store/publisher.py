"""The publisher: commits the pieces of a collector to its store, each table once, oldest piece first.

`python -m chiplog_collector.store DIR URL` ends with its standard input: after the pieces that wait then, or at once if
the store is away. A store that is away costs lines in the log and room in the outbox, never an acknowledgement.
"""

import logging
import math
import os
import select
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import duckdb

from chiplog_collector.store.deletion_requests import DeletionRequests
from chiplog_collector.store.delta_store import Addition, DeltaStore, ForeignPositionError, StoreError
from chiplog_collector.store.heartbeat import Beats
from chiplog_collector.store.maintainer import Maintainer
from chiplog_collector.store.outbox import Outage, Outbox, Piece, Published
from chiplog_collector.store.published_tables import COMPLETE, ORDERS
from chiplog_schemas.backoff import Backoff
from chiplog_schemas.limit_settings import keeps_files
from chiplog_schemas.limits import INDEX_LOCK_WAIT_S
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import LockHeldError, take_lock
from chiplog_schemas.storage.content_files import content_path
from chiplog_schemas.storage.segment_format import former_owner, former_owners, log_owner

_POLL_S = 0.5  # a directory is listed; a piece comes every 10 s
_BACKOFF_MIN_S = 1.0
_BACKOFF_MAX_S = 60.0
_OUTAGE_S = 10.0  # a shorter one is a line in the output, and no event
_RETIRED_LOOK_S = 60.0  # between two looks, before a piece: a process that was stopped may wake after days
_RENEWAL_S = 60.0  # for the receiver to see that the log is retired; it looks every few seconds
_DRAIN_S = 10.0  # at the end; the next start publishes the rest
_STALLED_S = 5.0  # without a request at the end: many times what one takes, and bearable for who waits for the end
_log = logging.getLogger("chiplog.store")


class RetiredLogError(Exception):
    """The log was retired: others delete in its place, so it must continue under a new ID."""

    def __init__(self, published: Published) -> None:
        super().__init__(f"log {published.log} was retired in {published.url}")
        self.published = published


class Publisher:
    """Publishes the pieces of one outbox.

    Any method raises StoreError, ForeignPositionError, RetiredLogError or OSError.
    """

    def __init__(
        self,
        store: DeltaStore,
        outbox: Outbox,
        log: str,
        files: Path | None,
        former: tuple[DeltaStore, int] | None = None,
    ) -> None:
        """Initialise.

        log: the ID of the log. files: the directory of the saved files of the collector; None: they stay there.
        former: the store for the log that this one was before it was restored, and the last record of that.
        """
        self._former = former
        self._begins: dict[str, int] = {}  # by table: the record up to which the store has the former log
        self._store = store
        self._outbox = outbox
        self._log = log
        self._files = files
        self._published: Published | None = None
        self._retired_look_at = 0.0

    def begin(self) -> Published:
        """Find out how far the log is published, and note it for the index.

        Raises:
            ForeignPositionError: The store has more of the log than this directory can have published.
            StoreError: It has less than this directory has published.
            RetiredLogError: The log was retired in the store.
        """
        self._store.forget_tables()
        positions = self._store.positions(ORDERS)
        known, waiting = self._outbox.published(), self._outbox.ends()
        until = positions.get(COMPLETE, -1)
        if self._former is not None:
            until = self._begin_after(self._former, until)
        if known is not None and (known.log, known.url) != (self._log, self._store.url):
            known = None  # of another store
        mine = {-1, *(known.positions.values() if known is not None else ())}
        unknown = [(table, number) for table, number in positions.items() if number not in mine]
        is_foreign = not all(number in waiting and self._is_published(table, number) for table, number in unknown)
        # safeguard: foreign-position-refused-at-start
        if is_foreign or (known is not None and known.is_foreign):
            self._outbox.set_published(Published(self._log, self._store.url, until, positions, is_foreign=True))
            raise ForeignPositionError(self._refusal(until))
        if known is not None and until < known.until:  # safeguard: emptied-store-is-away
            raise StoreError(
                f"it has this log up to record {until}, and {known.until} was published; is it mounted? "
                f"To publish to it from there on, stop the collector and remove {self._outbox.notes}"
            )
        self._store.check()
        # Also those of the former log: a piece must not have rows that a part of the tables has under that ID.
        published = self._note(until, self._begins | positions)
        self._check_retired()
        self._outbox.confirm()
        return published

    def _refusal(self, until: int) -> str:
        has = f"{self._store.url} has this log up to record {until}"
        first = self._outbox.unconfirmed()
        if first is not None and until >= first:
            return (
                f"{has}, and this directory had it only up to {first - 1}: it lost its end, or is a copy. "
                "End the other collector, or name another store here"
            )
        return (
            f"{has}, which this directory did not publish: it was restored or copied. End the other collector, or stop "
            "this one and run chiplog rebuild"
        )

    def _check_retired(self) -> None:
        self._retired_look_at = time.monotonic() + _RETIRED_LOOK_S
        assert self._published is not None
        if self._log in self._store.retired():  # safeguard: retired-log-publishes-nothing
            raise RetiredLogError(self._published)

    def _begin_after(self, former: tuple[DeltaStore, int], until: int) -> int:
        """Return the record after which this log is published: the store has a part of it under its former ID.

        Raises:
            ForeignPositionError: That part ends within the restored records, and no flush ends there yet.
        """
        store, end = former
        store.forget_tables()
        self._begins = {name: min(number, end) for name, number in store.positions(ORDERS).items()}
        begin = self._begins.get(COMPLETE, -1)
        known = self._outbox.published()
        is_aligned = known is not None and known.log == self._log and known.url == self._store.url
        is_aligned = is_aligned and known is not None and not known.is_foreign
        if until < begin and not is_aligned and any(number != end for number in self._begins.values()):
            self._outbox.set_published(Published(self._log, self._store.url, begin, self._begins, is_foreign=True))
            raise ForeignPositionError(
                f"{self._store.url} has this log up to record {begin} of {end} from before it was restored. "
                "Stop this collector and run chiplog rebuild"
            )
        if until < begin:
            _log.info("the store has the restored records up to %d; the log continues as %s", begin, self._log)
        return max(until, begin)

    def _is_published(self, table: str, until: int) -> bool:
        """Return True if a table has the waiting piece that ends there, not that of a copy of this directory."""
        return self._store.has_piece(table, self._outbox.piece(until).id)

    def publish_next(self, progress: Callable[[], None] = lambda: None) -> bool:
        """Publish the oldest piece. Return False if none waits. progress: called often while contents are stored."""
        waiting = self._outbox.ends()
        if not waiting:
            return False
        if time.monotonic() >= self._retired_look_at:
            self._check_retired()
        piece, published = self._outbox.piece(waiting[0]), self._published
        assert published is not None
        if piece.after != published.until or piece.log != self._log:
            # It is published, or does not follow what is, or has a former ID: the index cuts again what is missing.
            self._outbox.remove(piece)
            return True
        is_renewed = self._put_contents(piece, progress)
        for table in ORDERS:
            if table in piece.rows or table == COMPLETE:
                try:
                    self._publish(piece, table)
                except ForeignPositionError:
                    self._outbox.note_unconfirmed(published.until + 1)  # safeguard: overtaken-log-stays-unpublished
                    self._check_retired()  # what others deleted in its place has numbers above its own
                    raise
        if is_renewed:  # else a vacuum that had looked before may have removed one since
            self._put_contents(piece, progress)  # safeguard: renewed-content-put-again
        positions = published.positions | dict.fromkeys([*piece.rows, COMPLETE], piece.until)
        self._note(piece.until, positions)  # safeguard: published-noted-before-removal
        self._outbox.remove(piece)
        return True

    def _publish(self, piece: Piece, table: str) -> None:
        if piece.until <= self._begins.get(table, -1):
            return  # under the former ID
        path = self._outbox.file(piece, table)
        self._store.publish(Addition(table, path, piece.day, piece.after, piece.until, piece.id))

    def _put_contents(self, piece: Piece, progress: Callable[[], None]) -> bool:
        """Store the contents that have arrived, before the rows that say so. Return True if one was there, and old."""
        if "stored" not in piece.rows or self._files is None:
            return False
        is_renewed = False
        with duckdb.connect() as connection:
            query = "SELECT DISTINCT sha256 FROM read_parquet(?) ORDER BY sha256"
            found = connection.execute(query, [str(self._outbox.file(piece, "stored"))]).fetchall()
        with ThreadPoolExecutor(1) as pool:  # one content may take longer than a collector may be silent
            for (digest,) in found:
                path = content_path(self._files, bytes.fromhex(digest))
                stored = pool.submit(self._store.put_content, digest, path)
                while wait([stored], _POLL_S).not_done:
                    progress()  # safeguard: long-upload-is-not-silence
                progress()
                try:
                    is_renewed = stored.result() or is_renewed
                except FileNotFoundError:  # its rows were deleted since
                    _log.info("content %s is not at the collector any more; the store does without it", digest)
        return is_renewed

    @property
    def until(self) -> int:
        """The record up to which the log is published; -1 before the first piece."""
        return -1 if self._published is None else self._published.until

    def _note(self, until: int, positions: dict[str, int]) -> Published:
        self._published = Published(self._log, self._store.url, until, positions)
        self._outbox.set_published(self._published)
        return self._published


class _Outages:
    """Reports that the store is away, and that it is back: a line each and, of longer outages, an event each."""

    def __init__(self, url: str, outbox: Outbox) -> None:
        self._url = url
        self._outbox = outbox
        self._since: float | None = None
        last = outbox.outage()
        self._noted = last if last is not None and not last.is_over else None  # by the process before this one

    def note(self, error: Exception) -> None:
        """Report an error, if it is the first one."""
        what = f"the store {self._url}" if isinstance(error, StoreError) else "the outbox"
        text = f"{what} cannot be used: {error}; pieces wait and are published later"
        if self._since is None:
            self._since = time.monotonic()
            _log.warning("%s", text)
        if self._noted is None and time.monotonic() - self._since >= _OUTAGE_S:
            self._noted = self._write(Outage(uuid.uuid4().hex[:16], False, text))

    def end(self) -> None:
        """Report that the store is back, if it was away."""
        if self._since is not None:
            _log.info("the store %s is back; pieces that wait: %d", self._url, len(self._outbox.ends()))
        self._since = None
        if self._noted is not None and self._write(replace(self._noted, is_over=True)):
            self._noted = None

    def _write(self, outage: Outage) -> Outage | None:
        """Note an outage for the receiver; return None if the disk refuses."""
        try:
            self._outbox.set_outage(outage)
        except OSError:  # tried again by the next call
            return None
        return outage


class _End:
    """Detects the end of standard input. It ends the process if the stores then do nothing for _STALLED_S.

    A call of Delta tries again for minutes, and cannot be interrupted. What is left is as after a SIGKILL: pieces wait.
    """

    def __init__(self, outbox: Outbox, stores: Sequence[DeltaStore]) -> None:
        self._outbox = outbox
        self._stores = stores
        self._has_come = threading.Event()
        threading.Thread(target=self._watch, name="chiplog-end", daemon=True).start()

    def wait(self, wait_s: float) -> bool:
        """Wait, at most for the end. Return True if it has come."""
        return self._has_come.wait(wait_s)

    def report(self) -> None:
        """Report how many pieces are left."""
        if waiting := self._outbox.ends():
            _log.info("pieces that wait for the store: %d; the next start publishes them", len(waiting))

    def _watch(self) -> None:
        while not _input_ended(_BACKOFF_MAX_S):
            pass
        self._has_come.set()
        n_requests, since = -1, 0.0
        while n_requests < self._n_requests() or time.monotonic() - since < _STALLED_S:
            if n_requests < self._n_requests():
                n_requests, since = self._n_requests(), time.monotonic()
            time.sleep(_POLL_S)
        self.report()
        logging.shutdown()
        os._exit(0)  # safeguard: silent-store-delays-no-end

    def _n_requests(self) -> int:
        return sum(store.requests.total() for store in self._stores)


def serve(place: Paths, url: str) -> int:
    """Publish until standard input ends, then what waits. Return the exit status."""
    log_id = log_owner(place.collector / "log")
    if log_id is None:
        raise OSError(f"{place.collector / 'log'} holds no log; the collector makes it")
    log = log_id.hex()
    outbox = Outbox(place.store)
    files = None if keeps_files(os.environ) else place.files
    store = DeltaStore(url, log)
    before = former_owner(place.collector / "log")
    former = None if before is None else (DeltaStore(url, before[0].hex()), before[1])
    publisher, maintained = Publisher(store, outbox, log, files, former), DeltaStore(url, log)
    requests = DeletionRequests(place.store, log)
    beats = Beats(
        store,
        outbox,
        keeps_files=files is None,
        maintained=maintained,
        former=[owner.hex() for owner in former_owners(place.collector / "log")],
        deletions=requests,
    )
    maintainer = Maintainer(maintained, place.store / "compaction", requests)
    maintainer.start()
    end = _End(outbox, (store, maintained))
    backoff = Backoff(_BACKOFF_MIN_S, _BACKOFF_MAX_S)
    outages = _Outages(url, outbox)
    has_begun = is_ending = False
    stop_at = math.inf
    n_failed = 0  # attempts, one after the other
    while not is_ending or time.monotonic() < stop_at:
        pause_s = 0.0
        try:
            if not has_begun:
                published = publisher.begin()
                has_begun = True
                _log.info("publishing to %s from record %d on", url, published.until + 1)
            if publisher.publish_next(lambda: beats.beat(publisher.until)):
                maintainer.note_published()
                beats.note_published()
            else:
                if is_ending:
                    break
                pause_s = _POLL_S
            beats.beat(publisher.until)
            outages.end()
            backoff.reset()
            n_failed = 0
        except (StoreError, OSError) as error:  # safeguard: store-away-stops-nothing
            outages.note(error)
            has_begun = False  # what comes back may be another disk
            n_failed += 1
            pause_s = backoff.next_s()
        if not is_ending and end.wait(pause_s):
            is_ending, stop_at = True, time.monotonic() + _DRAIN_S
        if is_ending and n_failed > 1:  # one may be a commit of another process, which the next attempt finds
            break  # safeguard: end-waits-for-no-store
    end.report()
    maintainer.close()
    return 0


def _input_ended(wait_s: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def main(arguments: list[str]) -> int:
    """Run the process: DIR URL."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    root, url = arguments
    place = paths_for_root(Path(root))
    try:
        lock = take_lock(place.collector / "store.lock", patient_s=INDEX_LOCK_WAIT_S)
        try:
            return serve(place, url)
        finally:
            lock.release()
    except RetiredLogError as error:
        _log.warning("%s: it continues under a new ID", error)
        # Not the owner of the log: without the lock, the receiver may have given it another ID since.
        Outbox(place.store).note_retired(error.published)
        _input_ended(_RENEWAL_S)  # the receiver gives the log another ID, and starts the next publisher
        return 1
    except ForeignPositionError as error:
        _log.error("nothing is published: %s", error)
        while not _input_ended(_BACKOFF_MAX_S):  # a restart would say it again; only a rebuild changes it
            pass
        return 0
    except (LockHeldError, StoreError, OSError) as error:
        _log.error("publisher ends: %s", error)
        return 1
