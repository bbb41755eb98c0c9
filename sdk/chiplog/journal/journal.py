"""The journal of one producer: memory-mapped segments that `log()` copies records into.

Once `append` has returned, the bytes are in the page cache and survive SIGKILL of the process. Segments are allocated
(posix_fallocate: a mapped file on a full disk would kill the process) and prefaulted ahead by the sender thread.

`append` may be called from any thread, from signal handlers and finalisers, also while another `append` is running. No
lock is held while it runs, so none can leak and no caller waits for another one. Everything that changes is in one
tuple, the tail. An append reads it, prepares what to write, and then commits: if the tail is still the same object, it
writes the record and replaces the tail. CPython runs signal handlers, finalisers and other threads at calls, at
backward jumps and where containers are allocated, and a commit has none of these: nothing comes between its parts. If
something was appended after the tail was read, the append starts again behind that. So a nested append is in the file
when it returns, and an exception raised by a signal handler comes before a commit or after it.

A commit is one line of source, because a tracer (`sys.settrace`) may run code between lines. It relies on the GIL.
"""

import itertools
import mmap
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import get_ident
from typing import Any
from zlib import crc32

from chiplog.journal.segment import HeadPage, Segment, find_offset, split_at
from chiplog.safety.interrupts import is_interrupt
from chiplog_schemas.limits import (
    FILES_LOOK_S,
    FILES_TOUCH_S,
    JOURNAL_BYTES_MAX,
    JOURNAL_MEMORY_BYTES_MAX,
    JOURNAL_RESERVE_BYTES,
    KIB,
    MIB,
)
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.process.file_lock import Lock, touch
from chiplog_schemas.storage.journal_dir import (
    FINISHED,
    HEAD_NAME,
    LEFT,
    LOCK_NAME,
    PRODUCED,
    PRODUCED_OFFSET,
    remove_journal,
)
from chiplog_schemas.storage.record import HEADER_BYTES, MAGIC, Kind, pack_back, pack_front
from chiplog_schemas.storage.record import encode as frame
from chiplog_schemas.storage.segments import SEGMENT_HEADER_BYTES, SegmentHeader, encode_header, now_us, segment_name
from chiplog_schemas.transport.dealer import LogSlice

_FIRST_SEGMENT_BYTES = 256 * KIB  # cheap at init; most runs log less than this in a minute
_SEGMENT_BYTES_MAX = 1 * MIB  # one DATA frame carries a whole segment without a look at its records
_DISK_AGAIN_S = 0.05  # a full disk is asked this often while events are dropped: asking costs more than all of log()
_CROWDED = 7 / 8  # of the quota: from here on console lines find no room, so that metrics do
# Threads that find a segment full at the same moment leave the next one to the first of them. Not for longer: it may
# be interrupted by something that waits for one of them. A segment takes less than a millisecond on a healthy disk.
_MAKING_S = 0.05
_LOOK_AGAIN_S = 0.0005
# Of a segment, for what is appended while the next one is made: by a signal handler that interrupts that, at once; else
# handlers that come faster than segments are made would each begin to make one. 16 KiB are some hundred events.
_LAST_PART = 16
_PRODUCED = slice(PRODUCED_OFFSET, PRODUCED_OFFSET + PRODUCED.size)  # on the head page
_NOBODY = (0, 0.0)
_NO_PLACE = slice(0, 0)
_NO_MEMORY = bytearray()  # where nothing is written


@dataclass(slots=True)
class _Layout:
    """The part of a journal's state that changes seldom. Never changed in place: `replace` makes another one."""

    segment: Segment  # the current one
    full: tuple[Segment, ...] = ()  # begun before it and not all acknowledged
    spare: Segment | None = None
    reserved: int = 0  # bytes of the spare that is being made
    drop_first: int = -1  # first seq of a dropped run that is not declared yet
    dropped: int = 0  # events that found no room
    refuse: Callable[[], None] | None = None  # set when the journal is sealed
    is_crowded: bool = False
    memory: Any = field(init=False)  # of the current segment
    limit: int = field(init=False)  # up to here `append` writes by itself; 0 where every append takes the long way

    def __post_init__(self) -> None:
        self.memory = self.segment.memory
        is_plain = self.refuse is None and self.drop_first < 0 and self.segment.path is not None
        self.limit = _soft_limit(self.segment) if is_plain else 0

    @property
    def n_bytes(self) -> int:
        """Bytes that are allocated or about to be, the spare included."""
        spare = self.spare.size if self.spare is not None else 0
        return self.reserved + spare + self.segment.size + sum(segment.size for segment in self.full)

    @property
    def memory_bytes(self) -> int:
        """Bytes of segments without a file: memory that belongs to the training."""
        segments = (self.spare, self.segment, *self.full)
        return sum(segment.size for segment in segments if segment is not None and segment.path is None)


def _soft_limit(segment: Segment) -> int:
    """Return where the next segment is begun. The rest is for events that come while it is made."""
    return segment.size - segment.size // _LAST_PART


# All that changes: end of the records, next seq, the rest.
Tail = tuple[int, int, _Layout]


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
        self.memory_bytes_max = memory_bytes_max  # of segments without a file, while the disk refuses
        self.disk_error: OSError | None = None  # why segments are in memory, while they are
        self._disk_again_at = 0.0
        self._ordinals = itertools.count(1)  # drawn by several threads: next() is atomic
        self._making_by: tuple[int, float] = _NOBODY  # the writer that makes a segment, and until when it is left to it
        self._file_lock: Lock | None = None
        self._head: HeadPage | None = None
        self._look_at = 0.0  # whether the files are still there
        self._touch_at = time.monotonic() + FILES_TOUCH_S
        self._staging_dir = directory
        try:
            if directory is not None:
                ensure_private_dir(directory.parent)
                self._staging_dir = directory.with_name(f".new-{directory.name}")
                self._staging_dir.mkdir(mode=0o700)
                self._file_lock = Lock(self._staging_dir / LOCK_NAME)
                self._head = HeadPage(self._staging_dir / HEAD_NAME, producer, identity)
            path = None if self._staging_dir is None else self._staging_dir / segment_name(next(self._ordinals))
            segment = Segment(path, _FIRST_SEGMENT_BYTES)
        except OSError:
            self._remove_staging()
            raise
        segment.memory[:SEGMENT_HEADER_BYTES] = self._segment_header(0)
        self._tail: Tail = (SEGMENT_HEADER_BYTES, 0, _Layout(segment))
        self._cursor = (segment, SEGMENT_HEADER_BYTES, 0)  # what the link sends next
        self.acked = 0

    # -- writing: any thread --

    @property
    def next_seq(self) -> int:
        """How many seqs were given out."""
        return self._tail[1]

    @property
    def dropped(self) -> int:
        """How many events found no room."""
        return self._tail[2].dropped

    @property
    def is_under_pressure(self) -> bool:
        """Return True if the journal is nearly full: what matters least is dropped now."""
        return self._tail[2].is_crowded

    @property
    def is_sealed(self) -> bool:
        """Return True if nothing is appended any more."""
        return self._tail[2].refuse is not None

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Give an event the next seq and keep it. `urgent` events may use the reserve. Waits for nothing but the disk.

        A full journal drops the event; its seq is declared lost by an event of its own as soon as there is room.
        Raises only what a signal handler raises: then the event was appended, or nothing of it was.
        """
        size, checksum = len(payload), crc32(payload)
        while True:
            tail = self._tail
            position, seq, layout = tail
            end = position + HEADER_BYTES + size
            if end > layout.limit:
                while not self._put(self._tail, payload, urgent=urgent):
                    pass
                return
            # The usual case, in this frame: what follows runs with cold caches beside a training.
            back = pack_back(size, 1, 1, 0, seq)
            record = pack_front(MAGIC, crc32(back, checksum)) + back + payload
            # Made before the commit, a slice too: to allocate a container may run finalisers.
            after, place, memory = (end, seq + 1, layout), slice(position, end), layout.memory
            if self._tail is tail: memory[place] = record; self._tail = after; return  # fmt: skip  # noqa: E701, E702

    def declare_dropped(self) -> None:
        """Declare what was dropped, if there is room. The sender thread does so: nothing waits for the next `log()`."""
        while self._tail[2].drop_first >= 0 and not self.is_sealed:
            if self._put(self._tail, b""):
                return

    def seal(self, last: bytes | None, on_refused: Callable[[], None]) -> None:
        """Append the last event. What comes later is refused, and `on_refused` called."""
        if last is None:
            self._change(lambda layout: replace(layout, refuse=on_refused))
            return
        while not self._put(self._tail, last, urgent=True, refuse=on_refused):
            pass

    def _put(
        self,
        tail: Tail,
        payload: bytes,
        *,
        urgent: bool = False,
        skipped: int = 0,
        refuse: Callable[[], None] | None = None,
    ) -> bool:
        """Append behind this tail, or drop. False: the tail is another one by now, or about to be; try again.

        payload: an event; empty only to declare what was dropped. skipped: seqs that are given out before it. refuse:
        seals the journal.
        """
        position, seq, layout = tail
        if layout.refuse is not None:
            if payload:
                layout.refuse()
            return True
        set_counters = skipped or int(bool(payload))
        records, number = b"", seq + skipped
        if layout.drop_first >= 0:
            in_vain = payload and not urgent and time.monotonic() < self._disk_again_at
            if in_vain or skipped:  # those are declared with what else is dropped
                return self._count_dropped(tail, set_counters, refuse)
            lost = encode(EventKind.LOST, now_us(), b"", layout.drop_first, seq - 1, "journal full")
            records, number = frame(Kind.EVENT, number, lost), number + 1
        if payload:
            records, number = records + frame(Kind.EVENT, number, payload), number + 1
        end = position + len(records)
        # Memory ends with the process, and skipped seqs have no record: whoever adopts the journal must know of them.
        is_counted = layout.segment.path is None or skipped > 0
        if end > _soft_limit(layout.segment):
            needed = SEGMENT_HEADER_BYTES + len(records)
            spare = layout.spare
            if spare is not None and spare.size >= needed:
                self._let_go(layout)  # unless the sender thread has, see prepare()
                full = (*layout.full, layout.segment)
                changed = replace(layout, segment=spare, full=full, spare=None, drop_first=-1, refuse=refuse)
                changed.is_crowded = self._is_crowded(changed)
                is_counted = spare.path is None or skipped > 0
                header = self._segment_header(seq)
                return self._commit(tail, (needed, number, changed), header + records, 0, is_counted=is_counted)
            has_room = end <= layout.segment.size
            if self._is_making(wait=not has_room):
                if not has_room:
                    return False
            elif self._make(layout, needed, urgent):
                return False
            elif not has_room:
                return not set_counters or self._count_dropped(tail, set_counters, refuse)
        after = (end, number, replace(layout, drop_first=-1, refuse=refuse))
        return self._commit(tail, after, records, position, is_counted=is_counted)

    def _is_making(self, *, wait: bool) -> bool:
        """Return True if a segment is being made, by another thread or by what this call has interrupted."""
        maker, until = self._making_by
        if not maker or time.monotonic() >= until or (wait and maker == get_ident()):
            return False
        if wait:
            time.sleep(_LOOK_AGAIN_S)
        return True

    def _count_dropped(self, tail: Tail, count: int, refuse: Callable[[], None] | None) -> bool:
        position, seq, layout = tail
        first = layout.drop_first if layout.drop_first >= 0 else seq
        changed = replace(layout, drop_first=first, dropped=layout.dropped + count, refuse=refuse)
        return self._commit(tail, (position, seq + count, changed), is_counted=True)

    def _commit(
        self, tail: Tail, after: Tail, records: bytes = b"", position: int = 0, *, is_counted: bool = False
    ) -> bool:
        """Replace the tail and write what belongs to that, unless the tail was replaced before. All or nothing.

        is_counted: whether the head page must know the next seq at once.
        """
        end, seq, layout = tail
        current, segment = layout.segment, after[2].segment
        memory = segment.memory if records else _NO_MEMORY
        place = slice(position, position + len(records))
        first = segment.first_seq if segment is current else seq
        page: Any = _NO_MEMORY
        counter, produced = _NO_PLACE, b""
        if is_counted and (head := self._head) is not None:
            page, counter, produced = head.memory, _PRODUCED, PRODUCED.pack(after[1])
        if self._tail is tail: memory[place] = records; page[counter] = produced; current.end, current.next_seq = end, seq; segment.first_seq = first; self._tail = after; return True  # fmt: skip  # noqa: E501, E701, E702
        return False

    def _change(self, change: Callable[[_Layout], _Layout]) -> None:
        """Replace the layout, whatever is appended in the same moment."""
        while True:
            tail = self._tail
            end, seq, layout = tail
            if self._commit(tail, (end, seq, change(layout))):
                return

    def _segment_header(self, first_seq: int) -> bytes:
        return encode_header(SegmentHeader(self.producer, first_seq, now_us()))

    def _make(self, layout: _Layout, needed: int, urgent: bool) -> bool:
        """Make a spare for a writer that needs one now. False: that is too much."""
        allowed = self.bytes_max - (0 if urgent else JOURNAL_RESERVE_BYTES)
        least = max(16 * KIB if urgent else _FIRST_SEGMENT_BYTES, needed)
        wanted = max(min(_SEGMENT_BYTES_MAX, 2 * layout.segment.size), needed)
        if layout.n_bytes + wanted > allowed:
            wanted = least
            if layout.n_bytes + wanted > allowed:
                return False
        self._making_by = (get_ident(), time.monotonic() + _MAKING_S)
        made: Segment | None = None
        try:
            made = self._new_segment(wanted, urgent) or (self._new_segment(least, urgent) if urgent else None)
            if made is not None:
                self._install(made)
        finally:
            self._making_by = _NOBODY
            if made is not None:
                self._delete_unknown(made)
        return made is not None

    def _install(self, made: Segment) -> None:
        """Put a segment in the place of the spare, unless a larger one is there by now."""
        before: Segment | None = None

        def change(layout: _Layout) -> _Layout:
            nonlocal before
            before = layout.spare
            is_useless = layout.refuse is not None or (before is not None and before.size >= made.size)
            return replace(layout) if is_useless else replace(layout, spare=made)

        self._change(change)
        if before is not None:
            self._delete_unknown(before)

    def _delete_unknown(self, segment: Segment) -> None:
        """Delete a segment that is no part of the journal."""
        layout = self._tail[2]
        if segment not in (layout.spare, layout.segment, *layout.full):
            segment.delete()

    def _is_crowded(self, layout: _Layout) -> bool:
        return (
            layout.n_bytes > _CROWDED * (self.bytes_max - JOURNAL_RESERVE_BYTES)
            or layout.memory_bytes > _CROWDED * self.memory_bytes_max
        )

    @property
    def unpersisted_events(self) -> int:
        """How many events would end with this process: not acknowledged, and in no file."""
        _, next_seq, layout = self._tail
        spans = [(s.first_seq, s.next_seq) for s in layout.full if s.path is None]
        spans += [(layout.segment.first_seq, next_seq)] if layout.segment.path is None else []
        return sum(max(0, end - max(first, self.acked)) for first, end in spans)

    # -- segments: the writer in need, else the sender thread ahead of it --

    def preallocate(self) -> None:
        """Allocate and prefault the next segment before it is needed. Called by the sender thread."""
        position, _, layout = tail = self._tail
        self._let_go(layout)
        size = min(_SEGMENT_BYTES_MAX, 2 * layout.segment.size)
        if layout.spare is not None or layout.reserved or layout.refuse is not None:
            return
        if position * 4 <= layout.segment.size or layout.n_bytes + size > self.bytes_max - JOURNAL_RESERVE_BYTES:
            return  # not needed yet; or the quota is used up, and the writer in need finds the same, and drops
        # Reserved while it is made: a writer that finds no room besides drops, rather than exceed the quota.
        if not self._commit(tail, (*tail[:2], replace(layout, reserved=size))):
            return  # at the next look
        self._making_by = (get_ident(), time.monotonic() + _MAKING_S)
        try:
            made = self._new_segment(size)
            is_file = made is not None and made.path is not None
            if made is not None and (is_file or self._tail[2].memory_bytes + size <= self.memory_bytes_max):
                self._install(made)
                self._delete_unknown(made)
        finally:
            self._change(
                lambda layout: replace(layout, reserved=0)
            )  # last: in between it counts twice, never not at all
            self._making_by = _NOBODY

    def _new_segment(self, size: int, urgent: bool = False) -> Segment | None:
        """Return a segment on disk, or in memory while the disk refuses; None when that is used up too."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        directory = self._staging_dir
        if directory is not None:
            try:
                segment = Segment(directory / segment_name(next(self._ordinals)), size)
            except OSError as error:
                if is_interrupt(error):
                    raise
                self.disk_error = error
                self._disk_again_at = time.monotonic() + _DISK_AGAIN_S
            else:
                self.disk_error = None
                return segment
            allowed = self.memory_bytes_max - (0 if urgent else JOURNAL_RESERVE_BYTES)
            if self._tail[2].memory_bytes + size > max(allowed, size):
                return None
        try:
            return Segment(None, size)
        except OSError as error:
            if is_interrupt(error):
                raise
            return None  # not even the system has memory

    @staticmethod
    def _let_go(layout: _Layout) -> None:
        """Unmap the last full segment. The first one stays: without identity and config the rest would tell little."""
        if layout.full and layout.full[-1].first_seq:
            layout.full[-1].unmap()

    # -- files that others remove: the sender thread --

    def keep_files(self, now: float) -> None:
        """Make files again that a cleaner removed, and touch them all before one finds them old.

        What is mapped is still in memory, and is written again. Of other full segments `read` declares the loss. A lock
        that was released is taken again: the training may have closed its descriptor, and with it all others. An agent
        waits for that as long as it sees the process alive.
        """
        if now < self._look_at or self._file_lock is None or self.is_sealed or self._staging_dir != self.directory:
            return
        self._look_at = now + FILES_LOOK_S
        if now >= self._touch_at and self.directory is not None:
            self._touch_at = now + FILES_TOUCH_S
            touch((), [self.directory])
        try:
            self._restore_files()
        except OSError as error:  # the disk refuses: at the next look
            if is_interrupt(error):
                raise

    def _restore_files(self) -> None:
        directory, lock, head = self.directory, self._file_lock, self._head
        if directory is None or lock is None or head is None:
            return
        tail = self._tail[2].segment
        if lock.is_there and tail.is_there and head.is_at(directory / HEAD_NAME):
            return
        ensure_private_dir(directory)
        if not head.is_at(directory / HEAD_NAME):
            head.remake(directory / HEAD_NAME)
        if not tail.is_there and self._leave_segment():
            for segment in self._tail[2].full:
                if segment.memory is not None and not segment.is_there:
                    segment.restore()
        if not lock.is_there:  # last: an agent that finds a lock takes the rest for whole
            lock.renew()

    def _leave_segment(self) -> bool:
        """Begin another segment in place of the current one. Return whether that was possible."""
        following = self._new_segment(self._tail[2].segment.size)
        if following is None:
            return False
        done = False
        while not done:
            tail = self._tail
            _, seq, layout = tail
            if layout.refuse is not None or layout.drop_first >= 0:
                self._delete_unknown(following)
                return False  # it ends; or it is full, and what is dropped is declared first
            changed = replace(layout, segment=following, full=(*layout.full, layout.segment), spare=None)
            header = self._segment_header(seq)
            done = self._commit(tail, (len(header), seq, changed), header, 0)
        if layout.spare is not None:
            self._delete_unknown(layout.spare)
        return True

    # -- head page --

    def publish(self) -> None:
        """Give the directory the name under which agents look for it. To be called once seq 0 is there."""
        if self.directory is not None and self._staging_dir is not None:
            try:
                os.rename(self._staging_dir, self.directory)
            except OSError:
                self._remove_staging()
                raise
            layout = self._tail[2]
            for segment in (layout.segment, *layout.full):
                if segment.path is not None:
                    segment.path = self.directory / segment.path.name
            if self._file_lock is not None:
                self._file_lock.move_to(self.directory / LOCK_NAME)
            self._staging_dir = self.directory
            if self._file_lock is not None:
                self._file_lock.move_to(self.directory / LOCK_NAME)

    def _remove_staging(self) -> None:
        """Leave nothing behind of a journal that could not be made."""
        if self._file_lock is not None:
            self._file_lock.release()
        if self._staging_dir is not None:
            shutil.rmtree(self._staging_dir, ignore_errors=True)

    def set_identity(self, identity: bytes) -> None:
        """Replace the identity on the head page, if it fits."""
        if (head := self._head) is not None:
            head.set_identity(identity)

    def mark_finished(self) -> None:
        """Note on the head page that the run finished and how much it produced."""
        if (head := self._head) is not None:
            head.finish(self.next_seq, FINISHED)

    def mark_left(self) -> None:
        """Note on the head page that the process left, and that its exit status says how."""
        if (head := self._head) is not None:
            head.finish(self.next_seq, LEFT)

    # -- reading: the sender thread (the Source of its link) --

    @property
    def first_number(self) -> int:
        """The lowest seq that is still here."""
        layout = self._tail[2]
        oldest = layout.full[0] if layout.full else layout.segment
        return max(self.acked, oldest.first_seq)

    def seek(self, number: int) -> None:
        """Read on from this seq, or from the oldest that is still here."""
        number = max(number, self.first_number)
        layout = self._tail[2]
        for segment in (*layout.full, layout.segment):
            if segment is layout.segment or number < segment.next_seq:
                # Where it lies is looked up when it is read: a file that cannot be opened just now can later.
                self._cursor = (segment, 0, number)
                return

    def read(self, max_bytes: int) -> LogSlice | None:
        """Return records that follow what was read last, cut at a record's end; None when there are none.

        None too while a segment's file cannot be read: nothing is sent past it. One that was removed is declared lost.
        """
        try:
            return self._read(max_bytes)
        except FileNotFoundError:
            segment, _, seq = self._cursor
            self._cursor = (segment, segment.end, segment.next_seq)
            return LogSlice(seq, segment.next_seq - 1, b"", lost="a file of the journal was removed before it was sent")
        except OSError:
            return None

    def _read(self, max_bytes: int) -> LogSlice | None:
        while True:
            segment, position, seq = self._cursor
            tail_end, tail_seq, layout = self._tail
            is_tail, drop_first = segment is layout.segment, layout.drop_first
            end, next_seq = (tail_end, tail_seq) if is_tail else (segment.end, segment.next_seq)
            # A drop goes with its LOST.
            next_seq = min(next_seq, drop_first) if is_tail and drop_first > 0 else next_seq
            if not position:
                position = find_offset(segment.piece(0, end), end, seq)
                self._cursor = (segment, position, seq)
            if position < end:
                break
            if is_tail:
                return None
            # All of the same look: had a newer tail been begun since, this one would be skipped.
            following = [s for s in (*layout.full, layout.segment) if s.first_seq >= next_seq and s is not segment]
            # Not next_seq: a drop at the end of the segment before is declared in this one.
            self._cursor = (following[0], SEGMENT_HEADER_BYTES, seq)
        piece = segment.piece(position, end)
        if len(piece) > max_bytes:
            size, next_seq = split_at(piece, max_bytes)
            piece, end = piece[:size], position + size
        self._cursor = (segment, end, next_seq)
        return LogSlice(seq, next_seq - 1, piece)

    def acknowledged(self, next_number: int) -> None:
        """Trim what the next hop has on stable storage."""
        if next_number <= self.acked:
            return
        self.acked = next_number
        if (head := self._head) is not None:
            head.acknowledge(next_number)
        gone = [segment for segment in self._tail[2].full if segment.next_seq <= next_number]  # at its beginning
        if gone:
            self._change(lambda layout: self._without(layout, len(gone)))
        for segment in gone:
            segment.delete()

    def _without(self, layout: _Layout, n_gone: int) -> _Layout:
        changed = replace(layout, full=layout.full[n_gone:])
        changed.is_crowded = self._is_crowded(changed)
        return changed

    # -- the end --

    def close(self, *, remove: bool, keep_lock: bool = False) -> None:
        """Let go of the journal. `remove` deletes it: everything was acknowledged.

        keep_lock: the end of the process releases the lock, and its exit status is known by then.
        """
        spare = self._tail[2].spare
        self._change(lambda layout: replace(layout, spare=None))
        if spare is not None:
            self._delete_unknown(spare)
        if self.is_sealed:  # no process writes any more, and each mapping holds a descriptor
            for segment in (*self._tail[2].full, self._tail[2].segment):
                segment.unmap()  # not unmapped while another thread reads: with the last reference
            self._change(replace)
            self._head = None
        if remove and self.directory is not None:
            remove_journal(self.directory)
        if self._file_lock is not None and not keep_lock:
            self._file_lock.release()
            self._file_lock = None
