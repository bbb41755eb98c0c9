"""Adopt the journals of dead ranks: an agent that gets a journal's lock knows that its process is gone."""

import errno
import os
import shutil
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chiplog_agent.pipeline.batcher import EventBatcher
from chiplog_agent.ranks.exit_cause import ExitCauseResolver
from chiplog_agent.ranks.origins import origin_of_dead
from chiplog_schemas.codec import CodecError
from chiplog_schemas.limits import FILES_LOOK_S
from chiplog_schemas.model.events import EventKind, decode
from chiplog_schemas.process.file_lock import Lock, LockHeldError, file_id
from chiplog_schemas.process.procfs import is_mapped
from chiplog_schemas.storage.journal_dir import HEAD_NAME, LOCK_NAME, JournalReader, list_journals
from chiplog_schemas.storage.record import CorruptRange, Record

NOT_COPIED = "values on a device: not copied when the process died"
_RETRY_LOCK_S = 2.0  # of a connected rank whose process is known to live: it can only have lost it, as by an exec
_ADOPTED_MAX = 64  # each holds the descriptor of its lock, and a node may have thousands of dead ranks
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # not the fault of the journal: the next scan tries again
_UNDECIDED_MAX = 1_000  # workers of pools that ended before their owners; more stay crashed
_LOCKLESS_S = 10 * FILES_LOOK_S  # allows for a machine that is overloaded ten times
_LEFTOVER_AGE_S = 600.0  # creating and removing a journal take milliseconds, on a stalled disk perhaps minutes


@dataclass(slots=True)
class OrphanJournal:
    """One journal while it is read. `done` once the core has all of it; then it waits for the next sync."""

    producer: bytes
    journal: JournalReader
    lock: Lock
    records: Iterator[Record | CorruptRange]
    next_seq: int  # the number after the last record read
    done: bool = False


class OrphanJournalCollector:
    """All journals of a directory that are being adopted."""

    def __init__(self, journals: Path, endings: ExitCauseResolver | None = None) -> None:
        self._journals = journals
        self._exit_causes = endings if endings is not None else ExitCauseResolver(journals)
        self._adopted: dict[bytes, OrphanJournal] = {}
        self._paused: list[OrphanJournal] = []  # until the next scan: no descriptor was available
        self._waiting: list[OrphanJournal] = []  # passed to the core, to be removed after the next sync
        # Synced; they still exist only because the disk refuses to remove them.
        self._delivered: list[OrphanJournal] = []
        self._unreadable: list[OrphanJournal] = []  # left in place, and not scanned again by this agent
        # Workers that ended before their owners: (producer, identity, produced, when, STATE map).
        self._undecided: list[tuple[bytes, dict[str, Any], int, int, dict[str, Any]]] = []
        self._lockless: dict[bytes, float] = {}  # journals without a lock file, and since when
        self._all_at = 0.0  # when the locks of connected ranks are tried again, monotonic
        self.alive = 0  # journals whose process is running, or that are still to be checked, as of the last scan
        self.known: set[bytes] = set()  # producers that have a journal, as of the last scan

    @property
    def is_idle(self) -> bool:
        """Return True if no journal is left, of running or dead processes."""
        return not (self._adopted or self._paused or self._waiting or self.alive or self._undecided)

    @property
    def is_busy(self) -> bool:
        """Return True if there are records to read."""
        return bool(self._adopted)

    @property
    def is_waiting(self) -> bool:
        """Return True if journals were read to their end and wait for the next sync to be removed."""
        return bool(self._waiting)

    def scan(self, synced: dict[bytes, int], connected: Container[bytes] = ()) -> list[bytes]:
        """Try the lock of every journal; return the producers adopted now. `synced`: next seq already in the spool.

        connected: producers whose locks need not be tried each time, as long as their processes live.
        Raises OSError, without a change, when the directory cannot be read.
        """
        found = []
        alive = 0
        self._remove_delivered()
        self._adopted |= {adopted.producer: adopted for adopted in self._paused}
        self._paused = []
        held = self._held()
        journals = list_journals(self._journals)
        self.known = {producer for producer, _ in journals}
        self._lockless = {producer: since for producer, since in self._lockless.items() if producer in self.known}
        now = time.monotonic()
        is_whole = now >= self._all_at
        self._all_at = now + _RETRY_LOCK_S if is_whole else self._all_at
        for producer, directory in journals:
            if producer in held:
                continue
            if not is_whole and producer in connected and self._exit_causes.is_watched(producer):
                alive += 1  # its end is known at once
                continue
            if len(self._adopted) + len(self._waiting) >= _ADOPTED_MAX:  # safeguard: adopted-journals-bounded
                alive += 1
                continue
            try:
                path = directory / LOCK_NAME
                lock = Lock(path, create=self._is_abandoned(producer, path))
            except LockHeldError:
                alive += 1
                self._exit_causes.on_hello(
                    producer
                )  # also one that has not connected: this agent may just have started
                continue
            except OSError as error:
                alive += error.errno in _OUT_OF_DESCRIPTORS or producer in self._lockless
                continue  # it finished and was removed during the scan, or this user may not read it
            if self._exit_causes.exit_status_pending(producer):  # safeguard: wait-for-exit-status
                alive += 1
                lock.release()
                continue  # its exit triggers another scan: if several end together, each is reported
            try:
                journal = JournalReader(directory)
            except OSError as error:
                alive += error.errno in _OUT_OF_DESCRIPTORS
                lock.release()
                continue  # its head cannot be read; perhaps in the next scan
            first = max(synced.get(producer, 0), journal.head.acked if journal.head is not None else 0)
            self._adopted[producer] = OrphanJournal(producer, journal, lock, journal.records(first), first)
            found.append(producer)
        self.alive = alive
        return found

    def _is_abandoned(self, producer: bytes, lock: Path) -> bool:
        """Return True if a journal has lost its lock file and no process is left that would restore it.

        A running rank restores it within FILES_LOOK_S. A stopped one is found by its pidfd, or by the files that it
        maps.
        """
        if file_id(lock) is not None or file_id(lock.with_name(HEAD_NAME)) is None:
            self._lockless.pop(producer, None)
            return False
        if self._exit_causes.is_dead(producer):  # safeguard: dead-rank-without-lock-adopted
            return True
        now = time.monotonic()
        if now - self._lockless.setdefault(producer, now) < _LOCKLESS_S:
            return False
        self._lockless[producer] = now
        # safeguard: live-rank-without-lock-kept
        return not self._exit_causes.is_alive(producer) and not is_mapped(f"{lock.parent.name}/{HEAD_NAME}")

    def on_hello(self, producer: bytes, peer_pid: int = 0) -> None:
        """Watch the process of a producer that connected. peer_pid: at the other end of its socket, or 0.

        Not a producer whose journal is held here: its message is from before its end, and the holder of its lock is
        this agent.
        """
        if producer not in self._held():  # safeguard: adopter-is-not-the-rank
            self._exit_causes.on_hello(producer, peer_pid)

    def drain_into(self, core: EventBatcher, now: float, now_us: int) -> None:
        """Pass records to the core until its block is full, and report the end of each journal."""
        for producer, adopted in list(self._adopted.items()):
            try:
                self._drain_one(core, adopted, now, now_us)
            except OSError as error:
                del self._adopted[producer]
                if error.errno in _OUT_OF_DESCRIPTORS:  # safeguard: journal-waits-for-descriptor
                    adopted.records = adopted.journal.records(adopted.next_seq)
                    self._paused.append(adopted)
                    continue
                message = f"{adopted.journal.directory} is left as it is: {error}; the next agent tries again"
                core.notice("journal_unreadable", "error", message, {}, now, now_us)
                self._unreadable.append(adopted)
            if adopted.done:
                del self._adopted[producer]
                self._waiting.append(adopted)
            if not core.has_capacity:
                return

    def _drain_one(self, core: EventBatcher, adopted: OrphanJournal, now: float, now_us: int) -> None:
        head = adopted.journal.head
        identity = head.identity if head is not None else {}
        core.locate(adopted.producer, origin_of_dead(self._exit_causes.pid_of(adopted.producer), identity), now, now_us)
        reason = ""
        for item in adopted.records:
            if isinstance(item, CorruptRange):
                reason = f"journal damaged: {item.reason}"
                continue
            if item.number > adopted.next_seq and (reason or not _is_declared(item, adopted.next_seq)):
                lost = reason or "not in the journal: in memory when the disk refused, or its file was removed"
                core.declare_lost(adopted.producer, adopted.next_seq, item.number - 1, lost, now_us)
            reason = ""
            core.add_record(adopted.producer, item, now, now_us)  # safeguard: orphan-journal-delivered
            adopted.next_seq = item.number + 1
            if not core.has_capacity:
                return
        self._report_exit(core, adopted, now, now_us)

    def _report_exit(self, core: EventBatcher, adopted: OrphanJournal, now: float, now_us: int) -> None:
        """Report how the producer ended, and declare lost what the head page counts and the journal lacks."""
        adopted.done = True
        head = adopted.journal.head
        peer = core.peers.get(adopted.producer)
        produced = max(adopted.next_seq, head.produced if head is not None else 0)
        if produced > adopted.next_seq:  # safeguard: lost-end-of-rank-declared
            core.declare_lost(adopted.producer, adopted.next_seq, produced - 1, "not in the journal at its end", now_us)
        # A run's last event is its state: if the end is missing, so is the state.
        finished = bool(head is not None and head.finished)
        promised = head.promised if head is not None and not finished else 0
        if promised:  # safeguard: promised-loss-declared
            core.declare_lost(adopted.producer, produced, produced + promised - 1, NOT_COPIED, now_us)
            produced += promised
        # safeguard: unfinished-rank-declared-dead
        if not (peer is not None and peer.finished) and not (finished and produced == adopted.next_seq):
            known = {**(head.identity if head is not None else {}), **(peer.identity if peer is not None else {})}
            left = bool(head is not None and head.left)
            failure, cause = (peer.failure, peer.failure_cause) if peer is not None else ("", None)
            end = self._exit_causes.end_by_exec(adopted.producer, now_us, failure)
            ts_us, state = end or self._exit_causes.resolve(
                adopted.producer, known, now_us, finished=finished, left=left, failure=failure, failure_cause=cause
            )
            core.report_exit(adopted.producer, produced, state, now, ts_us)
            if self._exit_causes.may_be_dismissed(known, state) and len(self._undecided) < _UNDECIDED_MAX:
                self._undecided.append((adopted.producer, known, produced, ts_us, state))
        core.forget(adopted.producer)

    def decide(self, core: EventBatcher, now: float) -> None:
        """Correct the ends of workers that were reported as crashed, and whose owners have ended well since."""
        undecided, self._undecided = self._undecided, []
        for producer, known, produced, ts_us, state in undecided:
            if self._exit_causes.may_be_dismissed(known, state):
                self._undecided.append((producer, known, produced, ts_us, state))
            elif (dismissal := self._exit_causes.dismissal_of(known, state)) is not None:
                core.report_exit(producer, produced, dismissal, now, ts_us)

    def _held(self) -> set[bytes]:
        """Return the producers whose journal's lock this process holds."""
        some = (*self._paused, *self._waiting, *self._delivered, *self._unreadable)
        return {adopted.producer for adopted in some} | set(self._adopted)

    def on_spool_synced(self) -> list[bytes]:
        """Remove the journals that were read to their end before the last sync; return their producers."""
        removed = []
        for adopted in self._waiting:
            removed.append(adopted.producer)
        self._delivered += self._waiting
        self._waiting = []
        self._remove_delivered()
        return removed

    def _remove_delivered(self) -> None:
        """Remove delivered journals.

        One that the disk does not remove stays locked, or every scan would deliver it again.
        """
        kept = []
        for adopted in self._delivered:
            if adopted.journal.remove():
                adopted.lock.release()
            else:
                kept.append(adopted)  # safeguard: adopted-journal-kept-until-removed
        self._delivered = kept


def remove_stale_staging(journals: Path, now_s: float) -> None:
    """Remove leftovers of processes that died while creating or removing a journal. Their content was never promised.

    now_s: since the epoch. A lock protects running processes, and its age protects a leftover without a lock yet.
    """
    try:
        names = [name for name in os.listdir(journals) if name.startswith((".new-", ".done-"))]
    except OSError:
        return
    for name in names:
        directory = journals / name
        try:
            if now_s - os.stat(directory).st_mtime < _LEFTOVER_AGE_S:
                continue
            lock = Lock(directory / LOCK_NAME, create=False)
        except FileNotFoundError:
            shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue  # its process is running, or it belongs to another user
        else:
            shutil.rmtree(directory, ignore_errors=True)
            lock.release()


def _is_declared(record: Record, first: int) -> bool:
    """Return True if a record is the journal's own LOST about the seqs from `first` up to it."""
    try:
        event = decode(record.payload)
    except CodecError:
        return False
    return bool(event[0] == EventKind.LOST and event[2:3] == [b""] and event[3:5] == [first, record.number - 1])
