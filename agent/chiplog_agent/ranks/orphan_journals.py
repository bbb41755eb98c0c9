"""Adopt the journals of dead ranks: whoever gets a journal's lock may be sure that its process is gone."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
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
_ADOPTED_MAX = 64  # at once: each holds the descriptor of its lock, and a node of dead ranks may leave thousands
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # it says nothing of the journal: at the next look again
_UNDECIDED_MAX = 1_000  # workers of pools that ended before their owners; more stay crashed
_LOCKLESS_S = 10 * FILES_LOOK_S  # a machine that is loaded ten times over
_LEFTOVER_AGE_S = 600.0  # making and removing a journal take milliseconds, on a stalled disk perhaps minutes


@dataclass(slots=True)
class OrphanJournal:
    """One journal while it is read. `done` once all of it was given to the core, then it waits for the next sync."""

    producer: bytes
    journal: JournalReader
    lock: Lock
    records: Iterator[Record | CorruptRange]
    next_seq: int  # behind the last record read
    done: bool = False


class OrphanJournalCollector:
    """All journals of a directory that are being adopted."""

    def __init__(self, journals: Path, endings: ExitCauseResolver | None = None) -> None:
        self._journals = journals
        self._endings = endings if endings is not None else ExitCauseResolver(journals)
        self._adopted: dict[bytes, OrphanJournal] = {}
        self._paused: list[OrphanJournal] = []  # until the next look: there was no descriptor to read on
        self._waiting: list[OrphanJournal] = []  # given to the core, to be removed after the next sync
        self._delivered: list[OrphanJournal] = []  # synced; still there only because the disk refuses to remove them
        self._unreadable: list[OrphanJournal] = []  # left where they are, and not looked at again by this agent
        # Workers that ended before their owners: (producer, identity, produced, when, STATE map).
        self._undecided: list[tuple[bytes, dict[str, Any], int, int, dict[str, Any]]] = []
        self._lockless: dict[bytes, float] = {}  # whose lock's file was removed, and since when that is known
        self.alive = 0  # journals whose process lives, or that are still to be looked at, as of the last look
        self.known: set[bytes] = set()  # producers that have a journal, as of the last look

    @property
    def is_idle(self) -> bool:
        """Whether no journal is left, of living or dead."""
        return not (self._adopted or self._paused or self._waiting or self.alive or self._undecided)

    @property
    def is_busy(self) -> bool:
        """Whether there are records to be read."""
        return bool(self._adopted)

    @property
    def is_waiting(self) -> bool:
        """Whether journals were read to their end and wait for the next sync to be removed."""
        return bool(self._waiting)

    def scan(self, synced: dict[bytes, int]) -> list[bytes]:
        """Try the lock of every journal; return the producers adopted now. `synced`: next seq already in the spool.

        Raises OSError when the directory cannot be read: then nothing has changed.
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
        for producer, directory in journals:
            if producer in held:
                continue
            if len(self._adopted) + len(self._waiting) >= _ADOPTED_MAX:
                alive += 1
                continue
            try:
                lock = Lock(directory / LOCK_NAME, create=self._is_abandoned(producer, directory))
            except LockHeldError:
                alive += 1
                self._endings.greet(producer)  # also one that has not connected: this agent may just have started
                continue
            except OSError as error:
                alive += error.errno in _OUT_OF_DESCRIPTORS or producer in self._lockless
                continue  # else finished and removed while we looked, or not ours to read
            if self._endings.exit_status_pending(producer):
                alive += 1
                lock.release()
                continue  # its end will be a reason to look again: of several that end together, each is told
            try:
                journal = JournalReader(directory)
            except OSError as error:
                alive += error.errno in _OUT_OF_DESCRIPTORS
                lock.release()
                continue  # its head cannot be read; perhaps at the next look
            first = max(synced.get(producer, 0), journal.head.acked if journal.head is not None else 0)
            self._adopted[producer] = OrphanJournal(producer, journal, lock, journal.records(first), first)
            found.append(producer)
        self.alive = alive
        return found

    def _is_abandoned(self, producer: bytes, directory: Path) -> bool:
        """Return True if a journal has lost its lock's file and no process is left that would make it again.

        A rank that lives does so within FILES_LOOK_S. One that is stopped is known by its pidfd, or by what it maps.
        """
        if file_id(directory / LOCK_NAME) is not None or file_id(directory / HEAD_NAME) is None:
            self._lockless.pop(producer, None)
            return False
        if self._endings.is_dead(producer):
            return True
        now = time.monotonic()
        if now - self._lockless.setdefault(producer, now) < _LOCKLESS_S:
            return False
        self._lockless[producer] = now
        return not self._endings.is_alive(producer) and not is_mapped(f"{directory.name}/{HEAD_NAME}")

    def greet(self, producer: bytes, peer_pid: int = 0) -> None:
        """Watch the process of a producer that says that it is there. peer_pid: at the other end of its socket, or 0.

        Not one whose journal is held here: a late word of the dead. To look who holds the lock would release it.
        """
        if producer not in self._held():
            self._endings.greet(producer, peer_pid)

    def drain_into(self, core: EventBatcher, now: float, now_us: int) -> None:
        """Give the core records until its block is full, and what there is to say of each journal at its end."""
        for producer, adopted in list(self._adopted.items()):
            try:
                self._drain_one(core, adopted, now, now_us)
            except OSError as error:
                del self._adopted[producer]
                if error.errno in _OUT_OF_DESCRIPTORS:
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
        core.locate(adopted.producer, origin_of_dead(self._endings.pid_of(adopted.producer), identity), now, now_us)
        reason = ""
        for item in adopted.records:
            if isinstance(item, CorruptRange):
                reason = f"journal damaged: {item.reason}"
                continue
            if item.number > adopted.next_seq and (reason or not _is_declared(item, adopted.next_seq)):
                lost = reason or "not in the journal: in memory when the disk refused, or its file was removed"
                core.declare_lost(adopted.producer, adopted.next_seq, item.number - 1, lost, now_us)
            reason = ""
            core.add_record(adopted.producer, item, now, now_us)
            adopted.next_seq = item.number + 1
            if not core.has_capacity:
                return
        self._report_exit(core, adopted, now, now_us)

    def _report_exit(self, core: EventBatcher, adopted: OrphanJournal, now: float, now_us: int) -> None:
        """Say how the producer ended, and declare what the head page says was produced and is not there."""
        adopted.done = True
        head = adopted.journal.head
        peer = core.peers.get(adopted.producer)
        produced = max(adopted.next_seq, head.produced if head is not None else 0)
        if produced > adopted.next_seq:
            core.declare_lost(adopted.producer, adopted.next_seq, produced - 1, "not in the journal at its end", now_us)
        # What a run says last is its state: where the end is missing, so is that.
        finished = bool(head is not None and head.finished)
        promised = head.promised if head is not None and not finished else 0
        if promised:
            core.declare_lost(adopted.producer, produced, produced + promised - 1, NOT_COPIED, now_us)
            produced += promised
        if not (peer is not None and peer.finished) and not (finished and produced == adopted.next_seq):
            known = {**(head.identity if head is not None else {}), **(peer.identity if peer is not None else {})}
            left = bool(head is not None and head.left)
            failure, cause = (peer.failure, peer.failure_cause) if peer is not None else ("", None)
            ts_us, state = self._endings.resolve(
                adopted.producer, known, now_us, finished=finished, left=left, failure=failure, failure_cause=cause
            )
            core.report_exit(adopted.producer, produced, state, now, ts_us)
            if self._endings.may_be_dismissed(known, state) and len(self._undecided) < _UNDECIDED_MAX:
                self._undecided.append((adopted.producer, known, produced, ts_us, state))
        core.forget(adopted.producer)

    def decide(self, core: EventBatcher, now: float) -> None:
        """Correct the ends of workers that were called crashed while their owners lived, which ended well since."""
        undecided, self._undecided = self._undecided, []
        for producer, known, produced, ts_us, state in undecided:
            if self._endings.may_be_dismissed(known, state):
                self._undecided.append((producer, known, produced, ts_us, state))
            elif (dismissal := self._endings.dismissal_of(known, state)) is not None:
                core.report_exit(producer, produced, dismissal, now, ts_us)

    def _held(self) -> set[bytes]:
        """Return the producers whose journal's lock this process holds."""
        some = (*self._paused, *self._waiting, *self._delivered, *self._unreadable)
        return {adopted.producer for adopted in some} | set(self._adopted)

    def on_spool_synced(self) -> list[bytes]:
        """Remove the journals that were read to their end before the sync that just ended; return their producers."""
        removed = []
        for adopted in self._waiting:
            removed.append(adopted.producer)
        self._delivered += self._waiting
        self._waiting = []
        self._remove_delivered()
        return removed

    def _remove_delivered(self) -> None:
        """Remove what was delivered. What the disk keeps stays ours, or it would be delivered again at every look."""
        kept = []
        for adopted in self._delivered:
            if adopted.journal.remove():
                adopted.lock.release()
            else:
                kept.append(adopted)
        self._delivered = kept


def remove_stale_staging(journals: Path, now_s: float) -> None:
    """Remove what processes left that died while they made or removed a journal: nobody was promised anything of it.

    now_s: since the epoch. The living are spared by their lock, and by the age of what has no lock yet.
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
            continue  # its process lives, or it is not ours
        else:
            shutil.rmtree(directory, ignore_errors=True)
            lock.release()


def _is_declared(record: Record, first: int) -> bool:
    """Tell whether a record is the journal's own LOST about the seqs from `first` up to it."""
    try:
        event = decode(record.payload)
    except CodecError:
        return False
    return bool(event[0] == EventKind.LOST and event[2:3] == [b""] and event[3:5] == [first, record.number - 1])
