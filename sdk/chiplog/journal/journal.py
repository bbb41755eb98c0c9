"""The journal of one producer: memory-mapped segments that `log()` copies records into.

Once `append` has returned, the bytes are in the page cache and survive SIGKILL of the process. Segments are allocated
(posix_fallocate: a mapped file on a full disk would kill the process) and prefaulted ahead by the sender thread.

`append` may be called from any thread, from signal handlers and finalisers, also while another `append` is running. No
lock is held while it runs, so none can leak and no caller waits for another one: see `appender.py`.

A forked child changes nothing here, however it was forked: the journal passes on what the child appends.
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

from chiplog.journal.appender import NO_MEMORY, Appender
from chiplog.journal.segment import HeadPage, Segment, find_offset, split_at
from chiplog.safety.process_number import PAGE, process_number
from chiplog_schemas.clock import now_us
from chiplog_schemas.interrupts import unless_interrupt
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
    PRODUCED_OFFSET,
    remove_journal,
)
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as frame
from chiplog_schemas.storage.segment_format import SEGMENT_HEADER_BYTES, SegmentHeader, encode_header, segment_name
from chiplog_schemas.transport.dealer import LogSlice

_FIRST_SEGMENT_BYTES = 256 * KIB  # cheap at init; most runs log less than this in a minute
_SEGMENT_BYTES_MAX = 1 * MIB  # one DATA frame carries a whole segment without parsing its records
_DISK_AGAIN_S = 0.05  # between retries on a full disk while events are dropped: one costs more than all of log()
_CROWDED = 7 / 8  # of the quota: above this console lines are dropped, so that metrics find room
# Threads that find a segment full at the same moment wait so long for the first of them to make the next one. Not
# longer: code that waits for one of them may have interrupted it. A healthy disk takes less than a millisecond.
_MAKING_S = 0.05
_POLL_INTERVAL_S = 0.0005
# Divisor: this part of a segment is for appends while the next one is made, such as those of a signal handler that
# interrupts it. Otherwise handlers that come faster than segments are made would each make one. 16 KiB hold about a
# hundred events.
_LAST_PART = 16
_PROMISED_MAX = 0xFFFFFFFF  # a u32 on the head page
_NO_OWNER = (0, 0.0)


@dataclass(slots=True)
class _Layout:
    """The part of a journal's state that rarely changes. It is never changed in place: `replace` makes a new one."""

    segment: Segment  # the current one
    full: tuple[Segment, ...] = ()  # earlier ones that are not fully acknowledged
    spare: Segment | None = None
    reserved: int = 0  # bytes of the spare that is being made
    drop_first: int = -1  # first seq of a dropped run that is not declared yet
    dropped: int = 0  # events dropped for lack of room
    refuse: Callable[[], None] | None = None  # set when the journal is sealed
    is_crowded: bool = False
    memory: Any = field(init=False)  # of the current segment
    limit: int = field(init=False)  # `append` writes up to here by itself; 0: every append uses `_put`

    def __post_init__(self) -> None:
        self.memory = self.segment.memory
        is_plain = self.refuse is None and self.drop_first < 0 and self.segment.path is not None
        self.limit = _soft_limit(self.segment) if is_plain else 0

    @property
    def n_bytes(self) -> int:
        """Bytes that are allocated or reserved, including the spare."""
        spare = self.spare.size if self.spare is not None else 0
        return self.reserved + spare + self.segment.size + sum(segment.size for segment in self.full)

    @property
    def memory_bytes(self) -> int:
        """Bytes of segments without a file: memory that belongs to the training."""
        segments = (self.spare, self.segment, *self.full)
        return sum(segment.size for segment in segments if segment is not None and segment.path is None)


def _soft_limit(segment: Segment) -> int:
    """Return the offset at which the next segment begins. The rest is for events that come while it is made."""
    return segment.size - segment.size // _LAST_PART


# All that changes: end of the records, next seq, the rest.
Tail = tuple[int, int, _Layout]


class Journal(Appender):
    """Append records, and pass them to the link in order. `next_seq` counts every event that got a seq.

    directory: of this journal, created here; None keeps everything in memory. identity: packed, for the head page.
    Raises OSError if the directory cannot be created.
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
        self._process = process_number()
        # Called in a forked child that appends: with the payload, and whether it is urgent.
        self.on_append_in_child: Callable[[bytes, bool], object] = lambda payload, urgent: None
        self.directory = directory
        self.producer = producer
        self.bytes_max = bytes_max
        self.memory_bytes_max = memory_bytes_max  # of segments without a file, while the disk rejects writes
        self.disk_error: OSError | None = None  # why new segments are in memory; None if they are not
        self.last_disk_error: OSError | None = None  # why earlier ones may be
        self._disk_again_at = 0.0
        self._ordinals = itertools.count(1)  # drawn by several threads: next() is atomic
        self._making_by: tuple[int, float] = _NO_OWNER  # thread that makes a segment; others wait until then
        self._file_lock: Lock | None = None
        self._page: HeadPage | None = None  # use `_head`
        self._next_poll_s = 0.0  # time of the next check that the files exist
        self._touch_at = time.monotonic() + FILES_TOUCH_S
        self._staging_dir = directory
        try:
            if directory is not None:
                ensure_private_dir(directory.parent)
                self._staging_dir = directory.with_name(f".new-{directory.name}")
                self._staging_dir.mkdir(mode=0o700)
                self._file_lock = Lock(self._staging_dir / LOCK_NAME)
                self._page = HeadPage(self._staging_dir / HEAD_NAME, producer, identity)
            path = None if self._staging_dir is None else self._staging_dir / segment_name(next(self._ordinals))
            segment = Segment(path, _FIRST_SEGMENT_BYTES)
        except OSError:
            self._remove_staging()
            raise
        segment.memory[:SEGMENT_HEADER_BYTES] = self._segment_header(0)
        self._tail: Tail = (SEGMENT_HEADER_BYTES, 0, _Layout(segment))
        self._cursor = (segment, SEGMENT_HEADER_BYTES, 0)  # position of the next record to send
        self._promised = 0
        self.acked = 0

    @property
    def is_own(self) -> bool:
        """Return False in a forked child: the journal is that of the process that forked it."""
        return PAGE[0] == self._process

    @property
    def _head(self) -> HeadPage | None:
        """The head page, if there is one that this process may change."""
        return self._page if self.is_own else None

    # -- writing: any thread --

    @property
    def next_seq(self) -> int:
        """How many seqs were assigned."""
        return self._tail[1]

    @property
    def dropped(self) -> int:
        """How many events were dropped for lack of room."""
        return self._tail[2].dropped

    @property
    def size_bytes(self) -> int:
        """How many bytes its segments have, on disk or in memory."""
        return self._tail[2].n_bytes

    @property
    def is_under_pressure(self) -> bool:
        """Return True if the journal is nearly full: console lines are dropped now."""
        return self._tail[2].is_crowded

    @property
    def is_sealed(self) -> bool:
        """Return True if the journal rejects further events."""
        return self._tail[2].refuse is not None

    def _append_in_python(self, payload: bytes, urgent: bool) -> None:
        """Append an event that does not fit into the current segment, or that a full or sealed journal gets."""
        while not self._put(self._tail, payload, urgent=urgent):
            pass

    def declare_dropped(self) -> None:
        """Declare dropped events if there is room. The sender thread calls this, so it does not wait for a `log()`."""
        while self._tail[2].drop_first >= 0 and not self.is_sealed:
            if self._put(self._tail, b""):  # safeguard: drop-declared-with-room
                return

    def seal(self, last: bytes | None, on_refused: Callable[[], None]) -> None:
        """Append the last event. Later ones are rejected, with a call of `on_refused`."""
        if last is None:
            self._change(lambda layout: replace(layout, refuse=on_refused))
            return
        while not self._put(self._tail, last, urgent=True, refuse=on_refused):
            pass

    def promise(self, count: int) -> None:
        """Write to the head page how many events are promised: events without a seq, whose values are not ready.

        The agent that adopts the journal declares them lost. One caller at a time.
        """
        self._promised = min(count, _PROMISED_MAX)
        if (head := self._head) is not None:
            head.promise(self._promised)

    def lose(self, count: int, reason: str) -> None:
        """Assign seqs to `count` events and declare them lost, with other dropped events of a full journal."""
        while True:
            tail = self._tail
            seq = tail[1]
            lost = encode(EventKind.LOST, now_us(), b"", seq, seq + count - 1, reason)
            if self.is_sealed or self._put(tail, lost, urgent=True, skipped=count):
                return

    def _put(
        self,
        tail: Tail,
        payload: bytes,
        *,
        urgent: bool = False,
        skipped: int = 0,
        refuse: Callable[[], None] | None = None,
    ) -> bool:
        """Append after this tail, or drop. Return False if the tail has changed or is about to: the caller retries.

        payload: an event; empty only to declare dropped events. skipped: number of seqs to assign before it. refuse:
        seals the journal.
        """
        position, seq, layout = tail
        if layout.refuse is not None or not self.is_own:  # safeguard: child-leaves-parents-journal
            if payload and not skipped and refuse is None:
                self._reject(layout, payload, urgent)
            return True
        n_events = skipped or int(bool(payload))
        records, number = b"", seq + skipped
        if layout.drop_first >= 0:
            in_vain = payload and not urgent and time.monotonic() < self._disk_again_at
            if in_vain or skipped:  # skipped seqs are declared together with dropped events
                return self._count_dropped(tail, n_events, refuse)
            # safeguard: dropped-range-whole
            lost = encode(EventKind.LOST, now_us(), b"", layout.drop_first, seq - 1, "journal full")
            records, number = frame(Kind.EVENT, number, lost), number + 1
        if payload:
            records, number = records + frame(Kind.EVENT, number, payload), number + 1
        end = position + len(records)
        # Memory ends with the process, and skipped seqs have no record: the agent that adopts the journal needs both.
        is_counted = layout.segment.path is None or skipped > 0
        if end > _soft_limit(layout.segment):
            needed = SEGMENT_HEADER_BYTES + len(records)
            spare = layout.spare
            if spare is not None and spare.size >= needed:
                self._let_go(layout)  # unless the sender thread has done it, see preallocate()
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
                return not n_events or self._count_dropped(tail, n_events, refuse)
        after = (end, number, replace(layout, drop_first=-1, refuse=refuse))
        return self._commit(tail, after, records, position, is_counted=is_counted)

    def _reject(self, layout: _Layout, payload: bytes, urgent: bool) -> None:
        """Pass on the event of a forked child, or refuse one that comes after the last one."""
        if not self.is_own:
            self.on_append_in_child(payload, urgent)
        elif layout.refuse is not None:
            layout.refuse()

    def _is_making(self, *, wait: bool) -> bool:
        """Return True if a segment is being made, by another thread or by the code that this call interrupted."""
        maker, until = self._making_by
        if not maker or time.monotonic() >= until or (wait and maker == get_ident()):
            return False
        if wait:
            time.sleep(_POLL_INTERVAL_S)
        return True

    def _count_dropped(self, tail: Tail, count: int, refuse: Callable[[], None] | None) -> bool:
        position, seq, layout = tail
        first = layout.drop_first if layout.drop_first >= 0 else seq
        changed = replace(layout, drop_first=first, dropped=layout.dropped + count, refuse=refuse)
        return self._commit(tail, (position, seq + count, changed), is_counted=True)

    def _commit(
        self, tail: Tail, after: Tail, records: bytes = b"", position: int = 0, *, is_counted: bool = False
    ) -> bool:
        """Replace the tail and write its records, unless the tail has been replaced already. All or nothing.

        is_counted: whether the head page needs the next seq at once.
        """
        memory = after[2].segment.memory if records else NO_MEMORY
        page: Any = NO_MEMORY
        if is_counted and (head := self._head) is not None:  # safeguard: memory-events-counted
            page = head.memory
        return self._publish(tail, after, records, memory, position, page, PRODUCED_OFFSET)

    def _change(self, change: Callable[[_Layout], _Layout]) -> None:
        """Replace the layout, and retry after concurrent appends."""
        while True:
            tail = self._tail
            end, seq, layout = tail
            if self._commit(tail, (end, seq, change(layout))) or not self.is_own:
                return

    def _segment_header(self, first_seq: int) -> bytes:
        return encode_header(SegmentHeader(self.producer, first_seq, now_us()))

    def _make(self, layout: _Layout, needed: int, urgent: bool) -> bool:
        """Make a spare for a writer that needs one now. Return False if it would exceed the quota."""
        allowed = self.bytes_max - (0 if urgent else JOURNAL_RESERVE_BYTES)  # safeguard: journal-quota
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
            self._making_by = _NO_OWNER
            if made is not None:
                self._delete_unknown(made)
        return made is not None

    def _install(self, made: Segment) -> None:
        """Make a segment the spare, unless a spare of at least its size exists by now."""
        before: Segment | None = None

        def change(layout: _Layout) -> _Layout:
            nonlocal before
            before = layout.spare
            # safeguard: sealed-journal-stays-sealed
            is_useless = layout.refuse is not None or (before is not None and before.size >= made.size)
            return replace(layout) if is_useless else replace(layout, spare=made)

        self._change(change)
        if before is not None:
            self._delete_unknown(before)

    def _delete_unknown(self, segment: Segment) -> None:
        """Delete a segment that is not part of the journal."""
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
        """How many events would be lost with this process: not acknowledged, and not in a file."""
        _, next_seq, layout = self._tail
        spans = [(s.first_seq, s.next_seq) for s in layout.full if s.path is None]
        spans += [(layout.segment.first_seq, next_seq)] if layout.segment.path is None else []
        return sum(max(0, end - max(first, self.acked)) for first, end in spans)

    # -- segments: made by the sender thread in advance, or by a writer that needs one --

    def preallocate(self) -> None:
        """Allocate and prefault the next segment before it is needed. The sender thread calls this."""
        position, _, layout = tail = self._tail
        self._let_go(layout)
        size = min(_SEGMENT_BYTES_MAX, 2 * layout.segment.size)
        if layout.spare is not None or layout.reserved or layout.refuse is not None:
            return
        if position * 4 <= layout.segment.size or layout.n_bytes + size > self.bytes_max - JOURNAL_RESERVE_BYTES:
            return  # not needed yet; or the quota is used up, and writers drop events
        # Reserved while it is made: a writer that finds no further room drops, and does not exceed the quota.
        if not self._commit(tail, (*tail[:2], replace(layout, reserved=size))):  # safeguard: new-segment-counts
            return  # the tail has changed: retry at the next tick
        self._making_by = (get_ident(), time.monotonic() + _MAKING_S)  # safeguard: writer-waits-for-segment
        try:
            made = self._new_segment(size)
            is_file = made is not None and made.path is not None
            if made is not None and (is_file or self._tail[2].memory_bytes + size <= self.memory_bytes_max):
                self._install(made)
                self._delete_unknown(made)
        finally:
            self._change(
                lambda layout: replace(layout, reserved=0)
            )  # last: until then the segment counts twice, but is never missing
            self._making_by = _NO_OWNER

    def _new_segment(self, size: int, urgent: bool = False) -> Segment | None:
        """Return a segment on disk, or in memory while the disk rejects writes; None if that is used up too."""
        if not self.is_own:  # a signal handler has forked in the middle of an append
            return None
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        directory = self._staging_dir
        if directory is not None:
            try:
                segment = Segment(directory / segment_name(next(self._ordinals)), size)
            except unless_interrupt(OSError) as error:  # safeguard: timeout-is-no-disk-error
                self.disk_error = self.last_disk_error = error
                self._disk_again_at = time.monotonic() + _DISK_AGAIN_S
            else:
                self.disk_error = None
                return segment
            allowed = self.memory_bytes_max - (0 if urgent else JOURNAL_RESERVE_BYTES)
            if self._tail[2].memory_bytes + size > max(allowed, size):
                return None
        try:
            return Segment(None, size)
        except unless_interrupt(OSError):
            return None  # the system is out of memory

    @staticmethod
    def _let_go(layout: _Layout) -> None:
        """Unmap the last full segment. Keep the first one mapped: identity and config are in it."""
        if layout.full and layout.full[-1].first_seq:
            layout.full[-1].unmap()

    # -- files that other programs remove: the sender thread --

    def keep_files(self, now: float) -> None:
        """Make the lock again if a cleaner removed it, and touch all files before a cleaner finds them old.

        Of other files that were removed by hand, `read` declares the loss. A lock that was released is acquired again:
        the training may have closed its descriptor, and all others with it. An agent waits for that while it sees the
        process alive.
        """
        lock = self._file_lock
        if now < self._next_poll_s or lock is None or self.is_sealed or self._staging_dir != self.directory:
            return
        self._next_poll_s = now + FILES_LOOK_S
        if now >= self._touch_at and self.directory is not None:
            self._touch_at = now + FILES_TOUCH_S
            touch((), [self.directory])
        if self.is_own and not lock.is_there:
            try:
                lock.renew()  # safeguard: rank-makes-lock-again
            except unless_interrupt(OSError):
                pass  # the directory is gone, or the disk rejects writes: retry at the next check

    # -- head page --

    def publish(self) -> None:
        """Rename the directory to the name that agents look for. Call this once seq 0 is appended."""
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
        """Remove a journal that could not be created."""
        if self._file_lock is not None:
            self._file_lock.release()
        if self._staging_dir is not None:
            shutil.rmtree(self._staging_dir, ignore_errors=True)

    def set_identity(self, identity: bytes) -> None:
        """Replace the identity on the head page, if it fits."""
        if (head := self._head) is not None:
            head.set_identity(identity)

    def mark_finished(self) -> None:
        """Write to the head page that the run finished, and how much it produced."""
        if (head := self._head) is not None:
            head.finish(self.next_seq, FINISHED)

    def mark_left(self) -> None:
        """Write to the head page that the process exits, and that its exit status has the reason."""
        if (head := self._head) is not None:
            head.finish(self.next_seq, LEFT)

    # -- reading: the sender thread (the Source of its link) --

    @property
    def first_number(self) -> int:
        """The lowest seq that the journal still holds."""
        layout = self._tail[2]
        oldest = layout.full[0] if layout.full else layout.segment
        return max(self.acked, oldest.first_seq)

    def seek(self, number: int) -> None:
        """Continue reading at this seq, or at the oldest one that the journal still holds."""
        number = max(number, self.first_number)
        layout = self._tail[2]
        for segment in (*layout.full, layout.segment):
            if segment is layout.segment or number < segment.next_seq:
                # `read` finds the offset: a file that cannot be opened now may be readable later.
                self._cursor = (segment, 0, number)
                return

    def read(self, max_bytes: int) -> LogSlice | None:
        """Return the records after the last read, cut at the end of a record; None if there are none.

        Also None while a segment's file cannot be read: nothing is sent past it. A removed file is declared lost.
        """
        try:
            return self._read(max_bytes)
        except FileNotFoundError:
            segment, _, seq = self._cursor
            self._cursor = (segment, segment.end, segment.next_seq)  # safeguard: removed-segment-declared-lost
            return LogSlice(seq, segment.next_seq - 1, b"", lost="a file of the journal was removed before it was sent")
        except OSError:
            return None

    def _read(self, max_bytes: int) -> LogSlice | None:
        while True:
            segment, position, seq = self._cursor
            tail_end, tail_seq, layout = self._tail
            is_tail, drop_first = segment is layout.segment, layout.drop_first
            end, next_seq = (tail_end, tail_seq) if is_tail else (segment.end, segment.next_seq)
            # Dropped seqs are sent together with their LOST event.
            next_seq = min(next_seq, drop_first) if is_tail and drop_first > 0 else next_seq
            if not position:
                position = find_offset(segment.piece(0, end), end, seq)
                self._cursor = (segment, position, seq)
            if position < end:
                break
            if is_tail:
                return None
            # Use the same snapshot: with a newer tail, the segment of this snapshot would be skipped.
            following = [s for s in (*layout.full, layout.segment) if s.first_seq >= next_seq and s is not segment]
            # Not next_seq: this segment declares a drop at the end of the previous one.
            self._cursor = (following[0], SEGMENT_HEADER_BYTES, seq)
        piece = segment.piece(position, end)
        if len(piece) > max_bytes:
            size, next_seq = split_at(piece, max_bytes)
            piece, end = piece[:size], position + size
        self._cursor = (segment, end, next_seq)
        return LogSlice(seq, next_seq - 1, piece)

    def acknowledged(self, next_number: int) -> None:
        """Remove what the next hop has on stable storage."""
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
        """Close the journal. `remove` deletes it: everything was acknowledged.

        keep_lock: the exit of the process releases the lock, and the exit status is known by then.
        """
        if not self.is_own:
            return
        spare = self._tail[2].spare
        self._change(lambda layout: replace(layout, spare=None))
        if spare is not None:
            self._delete_unknown(spare)
        if self.is_sealed:  # there are no writers any more, and each mapping holds a descriptor
            for segment in (*self._tail[2].full, self._tail[2].segment):
                segment.unmap()  # a reader of another thread keeps the mapping until it is done
            self._change(replace)
            self._page = None
        if remove and self.directory is not None:
            remove_journal(self.directory)
        if self._file_lock is not None and not keep_lock:
            self._file_lock.release()
            self._file_lock = None
