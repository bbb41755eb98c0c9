"""The journal of one producer: memory-mapped segments that `log()` copies records into.

Once `append` has returned, the bytes are in the page cache and survive SIGKILL of the process. Segments are allocated
(posix_fallocate: a mapped file on a full disk would kill the process) and prefaulted ahead by the sender thread.
`append` may be called from any thread, from signal handlers and finalisers, also while another `append` is running.
"""

import itertools
import mmap
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from chiplog.mapped import Head, Segment, cut, offset_of
from chiplog_schemas.events import EventKind, encode
from chiplog_schemas.journals import FINISHED, HEAD_NAME, LEFT, LOCK_NAME, remove_journal
from chiplog_schemas.limits import JOURNAL_BYTES_MAX, JOURNAL_MEMORY_BYTES_MAX, JOURNAL_RESERVE_BYTES, KIB, MIB
from chiplog_schemas.link import Slice
from chiplog_schemas.locks import Lock
from chiplog_schemas.places import make_private
from chiplog_schemas.record import HEADER_BYTES, MAGIC, Kind, pack_back, pack_front
from chiplog_schemas.record import encode as frame
from chiplog_schemas.segments import SEGMENT_HEADER_BYTES, now_us, segment_name

_FIRST_SEGMENT_BYTES = 256 * KIB  # cheap at init; most runs log less than this in a minute
_SEGMENT_BYTES_MAX = 1 * MIB  # one DATA frame carries a whole segment without a look at its records
LOCK_WAIT_S = 0.05  # then the event is put aside rather than the caller blocked
_DEFERRED_MAX = 10_000  # events put aside by signal handlers; more is a runaway handler
_DISK_AGAIN_S = 0.05  # a full disk is asked this often while events are dropped: asking costs more than all of log()
_CROWDED = 7 / 8  # of the quota: from here on console lines find no room, so that metrics do


class Journal:
    """Append records, and give them to the link in order. `next_seq` counts every event that was given a number.

    directory: of this journal, made here; None keeps everything in memory. identity: packed, written to the head page.
    Raises OSError when the directory cannot be made, LockHeldError never in practice.
    """

    def __init__(
        self,
        directory: Path | None,
        producer: bytes,
        identity: bytes,
        *,
        bytes_max: int = JOURNAL_BYTES_MAX,
        memory_bytes_max: int = JOURNAL_MEMORY_BYTES_MAX,
    ) -> None:
        self.directory = directory
        self.producer = producer
        self.bytes_max = bytes_max
        self.memory_bytes_max = memory_bytes_max  # of what is no file, while the disk refuses
        self.dropped = 0  # events that found no room
        self.deferred_dropped = 0
        self.is_crowded = False  # nearly full: what matters least is to be dropped now
        self.disk_error: OSError | None = None  # why segments are in memory, while they are
        # Reentrant, so that a signal handler never waits for the thread that it interrupted: it enters, and looks
        # whether that thread is inside of an append. Just before and just behind one, it may append itself.
        self._lock = threading.RLock()
        self._inside = False
        self._waiting: set[int] = set()  # threads that wait for another one's append
        self._deferred: deque[bytes] = deque()
        self._disk_again_at = 0.0
        self._drop_first = -1  # first seq of a dropped run that is not declared yet
        self._ordinals = itertools.count(1)  # drawn by two threads: next() is atomic
        self._spare: Segment | None = None
        self._reserved = 0  # bytes of the spare that is being made
        self._full: deque[Segment] = deque()  # begun before the current one and not all acknowledged
        self._on_refused: Callable[[], None] | None = None  # set when it is sealed
        self._file_lock: Lock | None = None
        self._head: Head | None = None
        self._making = directory
        try:
            if directory is not None:
                make_private(directory.parent)
                self._making = directory.with_name(f".new-{directory.name}")
                self._making.mkdir(mode=0o700)
                self._file_lock = Lock(self._making / LOCK_NAME)
                self._head = Head(self._making / HEAD_NAME, producer, identity)
            path = None if self._making is None else self._making / segment_name(next(self._ordinals))
            segment = Segment(path, _FIRST_SEGMENT_BYTES)
        except OSError:
            self._discard()
            raise
        segment.begin(producer, 0)
        # All that a reader needs for a consistent look, replaced at once: (segment, end of its records, next seq).
        self._tail: tuple[Segment, int, int] = (segment, SEGMENT_HEADER_BYTES, 0)
        self._cursor = (segment, SEGMENT_HEADER_BYTES, 0)  # what the link sends next
        self.acked = 0

    # -- writing: any thread --

    @property
    def next_seq(self) -> int:
        """How many seqs were given out."""
        return self._tail[2]

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Give an event the next seq and keep it. `urgent` events may use the reserve. Never raises, never blocks long.

        A full journal drops the event; its seq is declared lost by an event of its own as soon as there is room.
        """
        if not self._lock.acquire(False) and not self._wait():
            self._defer(payload)
            return
        if self._inside:
            # Called from inside an append of this very thread (signal handler, finaliser): it finishes this one too.
            self._lock.release()
            self._defer(payload)
            return
        self._inside = True
        try:
            segment, position, seq = self._tail
            size = len(payload)
            end = position + HEADER_BYTES + size
            if end > segment.size or self._drop_first >= 0 or segment.path is None:
                self._append(payload, urgent)
            else:  # the usual case, in this frame: what follows runs with cold caches beside a training
                back = pack_back(size, 1, 1, 0, seq)
                segment.memory[position:end] = pack_front(MAGIC, crc32(back, crc32(payload))) + back + payload
                self._tail = (segment, end, seq + 1)
        finally:
            self._inside = False
            self._lock.release()
        if self._deferred:
            self.drain_deferred()

    def drain_deferred(self) -> None:
        """Append what was put aside, and declare what was dropped once there is room.

        The sender thread calls this too, so that nothing waits for the next `log()`.
        """
        while (self._deferred or self._has_to_declare) and self._lock.acquire(False):
            if self._inside:
                self._lock.release()
                return
            self._inside = True
            try:
                while self._deferred:
                    self._append(self._deferred.popleft(), False)
                if self._has_to_declare and not self._declare(0, urgent=False):
                    return
            finally:
                self._inside = False
                self._lock.release()

    def _wait(self) -> bool:
        """Wait for another thread's append, not long. A signal handler that interrupts the wait does not wait too."""
        me = threading.get_ident()
        if me in self._waiting:
            return False
        self._waiting.add(me)
        try:
            return self._lock.acquire(timeout=LOCK_WAIT_S)
        finally:
            self._waiting.discard(me)

    def _defer(self, payload: bytes) -> None:
        if len(self._deferred) < _DEFERRED_MAX:
            self._deferred.append(payload)
        else:
            self.deferred_dropped += 1

    def seal(self, last: bytes | None, on_refused: Callable[[], None]) -> bool:
        """Append the last event. What comes later is refused, and `on_refused` called. Never raises.

        Behind an append that hangs it is put aside like any other; false: inside of one (a signal handler), not done.
        """
        if not self._lock.acquire(timeout=LOCK_WAIT_S):
            if last is not None:
                self._defer(last)
            return True
        try:
            if self._inside:
                return False
            self._inside = True
            try:
                while self._deferred:
                    self._append(self._deferred.popleft(), False)
                if last is not None:
                    self._append(last, True)
                self._drop_first = max(self._drop_first, 0)  # append goes the long way, which refuses
                self._on_refused = on_refused
            finally:
                self._inside = False
            return True
        finally:
            self._lock.release()

    def _append(self, payload: bytes, urgent: bool) -> None:
        if self._on_refused is not None:
            self._on_refused()
            return
        size, is_dropping = HEADER_BYTES + len(payload), self._drop_first >= 0
        in_vain = is_dropping and not urgent and time.monotonic() < self._disk_again_at
        if in_vain or (is_dropping and not self._declare(size, urgent)) or not self._make_room(size, urgent):
            self._drop(self._tail[2])
            return
        self._write(payload)

    @property
    def _has_to_declare(self) -> bool:
        return self._drop_first >= 0 and self._on_refused is None

    def _declare(self, size: int, urgent: bool) -> bool:
        """Say what was dropped, if there is room for that and `size` bytes more."""
        lost = encode(EventKind.LOST, now_us(), b"", self._drop_first, self._tail[2] - 1, "journal full")
        if not self._make_room(HEADER_BYTES + len(lost) + size, urgent):
            return False
        self._drop_first = -1
        self._write(lost)
        return True

    def _write(self, payload: bytes) -> None:
        segment, position, seq = self._tail
        end = position + HEADER_BYTES + len(payload)
        segment.memory[position:end] = frame(Kind.EVENT, seq, payload)
        self._tail = (segment, end, seq + 1)
        if segment.path is None:
            self._write_counters()  # memory ends with the process: whoever adopts the rest must know what there was

    def _drop(self, seq: int) -> None:
        if self._drop_first < 0:
            self._drop_first = seq
        self.dropped += 1
        segment, position, _ = self._tail
        self._tail = (segment, position, seq + 1)
        self._write_counters()

    def _make_room(self, size: int, urgent: bool) -> bool:
        """Make the current segment hold `size` more bytes, by a new segment if need be."""
        segment, position, seq = self._tail
        if position + size <= segment.size:
            return True
        wanted = min(_SEGMENT_BYTES_MAX, 2 * segment.size)
        spare, self._spare = self._spare, None
        if spare is None or spare.size < size + SEGMENT_HEADER_BYTES:
            if spare is not None:
                spare.delete()
            allowed = self.bytes_max - (0 if urgent else JOURNAL_RESERVE_BYTES)
            needed = size + SEGMENT_HEADER_BYTES
            least = max(16 * KIB if urgent else _FIRST_SEGMENT_BYTES, needed)
            wanted = max(wanted, needed)
            if self._bytes + wanted > allowed:
                wanted = least
                if self._bytes + wanted > allowed:
                    return False
            spare = self._new_segment(wanted, urgent) or (self._new_segment(least, urgent) if urgent else None)
            if spare is None:
                return False
        spare.begin(self.producer, seq)
        segment.end, segment.next_seq = position, seq
        self._full.append(segment)
        self._tail = (spare, SEGMENT_HEADER_BYTES, seq)
        segment.let_go()
        self._look_at_room()
        return True

    def _look_at_room(self) -> None:
        self.is_crowded = (
            self._bytes > _CROWDED * (self.bytes_max - JOURNAL_RESERVE_BYTES)
            or self._memory_bytes > _CROWDED * self.memory_bytes_max
        )

    @property
    def _bytes(self) -> int:
        """What is allocated or about to be, the spare included."""
        spare = self._spare.size if self._spare is not None else self._reserved
        # A copy, made in one step: the writer and the sender thread both change the queue while the other one counts.
        return spare + self._tail[0].size + sum(segment.size for segment in tuple(self._full))

    @property
    def _memory_bytes(self) -> int:
        """What of it is no file: memory that belongs to the training."""
        segments = (self._spare, self._tail[0], *self._full)
        return sum(segment.size for segment in segments if segment is not None and segment.path is None)

    @property
    def only_in_memory(self) -> int:
        """How many events would end with this process: not acknowledged, and in no file."""
        spans = [(s.first_seq, s.next_seq) for s in self._full if s.path is None]
        tail, _, next_seq = self._tail
        spans += [(tail.first_seq, next_seq)] if tail.path is None else []
        return sum(max(0, end - max(first, self.acked)) for first, end in spans)

    # -- segments: the writer in need, else the sender thread ahead of it --

    def prepare(self) -> None:
        """Allocate and prefault the next segment before it is needed. Called by the sender thread."""
        segment, position, _ = self._tail
        size = min(_SEGMENT_BYTES_MAX, 2 * segment.size)
        if self._spare is not None or position * 4 <= segment.size or not self._lock.acquire(timeout=LOCK_WAIT_S):
            return
        fits = self._on_refused is None and self._bytes + size <= self.bytes_max - JOURNAL_RESERVE_BYTES
        self._reserved = size if fits else 0  # a writer that finds no room besides drops, rather than exceed the quota
        self._lock.release()
        spare = self._new_segment(size) if fits else None  # None: the writer in need finds the same, and drops
        if self._lock.acquire(timeout=LOCK_WAIT_S):
            is_over = spare is not None and spare.path is None and self._memory_bytes + size > self.memory_bytes_max
            if self._on_refused is None and not is_over:
                self._spare, spare = spare, None  # nobody else sets one
            self._reserved = 0
            self._lock.release()
        if spare is not None:  # sealed meanwhile, or a writer that hangs, or took the last memory
            spare.delete()
            self._reserved = 0

    def _new_segment(self, size: int, urgent: bool = False) -> Segment | None:
        """Return a segment on disk, or in memory while the disk refuses; None when that is used up too."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        directory = self._making
        if directory is not None:
            try:
                segment = Segment(directory / segment_name(next(self._ordinals)), size)
            except OSError as error:
                self.disk_error = error
                self._disk_again_at = time.monotonic() + _DISK_AGAIN_S
            else:
                self.disk_error = None
                return segment
            allowed = self.memory_bytes_max - (0 if urgent else JOURNAL_RESERVE_BYTES)
            if self._memory_bytes + size > max(allowed, size):
                return None
        try:
            return Segment(None, size)
        except OSError:
            return None  # not even the system has memory

    # -- head page --

    def publish(self) -> None:
        """Give the directory the name under which agents look for it. To be called once seq 0 is there."""
        if self.directory is not None and self._making is not None:
            try:
                os.rename(self._making, self.directory)
            except OSError:
                self._discard()
                raise
            for segment in (self._tail[0], *self._full):
                if segment.path is not None:
                    segment.path = self.directory / segment.path.name
            self._making = self.directory

    def _discard(self) -> None:
        """Leave nothing behind of a journal that could not be made."""
        if self._file_lock is not None:
            self._file_lock.release()
        if self._making is not None:
            shutil.rmtree(self._making, ignore_errors=True)

    def set_identity(self, identity: bytes) -> None:
        """Replace the identity on the head page, if it fits."""
        if (head := self._head) is not None:
            head.renew(identity)

    def mark_finished(self) -> None:
        """Note on the head page that the run finished and how much it produced."""
        self._write_counters(FINISHED)

    def mark_left(self) -> None:
        """Note on the head page that the process left, and that its exit status says how."""
        self._write_counters(LEFT)

    def _write_counters(self, flags: int = 0) -> None:
        if (head := self._head) is not None:  # the sender's thread may outlive the close
            head.count(self.acked, self._tail[2], flags)

    # -- reading: the sender thread (the Source of its link) --

    @property
    def first_number(self) -> int:
        """The lowest seq that is still here."""
        oldest = self._full[0] if self._full else self._tail[0]
        return max(self.acked, oldest.first_seq)

    def seek(self, number: int) -> None:
        """Read on from this seq, or from the oldest that is still here."""
        number = max(number, self.first_number)
        tail_segment = self._tail[0]
        for segment in [*self._full, tail_segment]:
            if segment is tail_segment or number < segment.next_seq:
                # Where it lies is looked up when it is read: a file that cannot be opened just now can later.
                self._cursor = (segment, 0, number)
                return

    def read(self, max_bytes: int) -> Slice | None:
        """Return records that follow what was read last, cut at a record's end; None when there are none.

        None too while a segment's file cannot be read: nothing is sent past it, and who adopts the journal declares it.
        """
        try:
            return self._read(max_bytes)
        except OSError:
            return None

    def _read(self, max_bytes: int) -> Slice | None:
        while True:
            segment, position, seq = self._cursor
            tail_segment, tail_end, tail_seq = self._tail
            is_tail, drop_first = segment is tail_segment, self._drop_first
            end, next_seq = (tail_end, tail_seq) if is_tail else (segment.end, segment.next_seq)
            # A drop goes with its LOST.
            next_seq = min(next_seq, drop_first) if is_tail and drop_first > 0 else next_seq
            if not position:
                position = offset_of(segment.piece(0, end), end, seq)
                self._cursor = (segment, position, seq)
            if position < end:
                break
            if is_tail:
                return None
            # The tail as it was looked at above: had a newer one been begun since, this one would be skipped.
            following = [s for s in [*self._full, tail_segment] if s.first_seq >= next_seq and s is not segment]
            self._cursor = (following[0], SEGMENT_HEADER_BYTES, next_seq)
        piece = segment.piece(position, end)
        if len(piece) > max_bytes:
            size, next_seq = cut(piece, max_bytes)
            piece, end = piece[:size], position + size
        self._cursor = (segment, end, next_seq)
        return Slice(seq, next_seq - 1, piece)

    def acknowledged(self, next_number: int) -> None:
        """Trim what the next hop has on stable storage."""
        if next_number <= self.acked:
            return
        self.acked = next_number
        self._write_counters()
        while self._full and self._full[0].next_seq <= next_number:
            self._full.popleft().delete()
        self._look_at_room()

    # -- the end --

    def close(self, *, remove: bool, keep_lock: bool = False) -> None:
        """Let go of the journal. `remove` deletes it: everything was acknowledged.

        keep_lock: the end of the process releases the lock, and its exit status is known by then.
        """
        if self._spare is not None:
            self._spare.delete()
            self._spare = None
        if self._on_refused is not None:  # sealed: nobody writes any more, and each mapping holds a descriptor
            self._tail[0].let_go()  # not unmapped under somebody who still reads: with the last reference
            self._head = None
        if remove and self.directory is not None:
            remove_journal(self.directory)
        if self._file_lock is not None and not keep_lock:
            self._file_lock.release()
            self._file_lock = None
