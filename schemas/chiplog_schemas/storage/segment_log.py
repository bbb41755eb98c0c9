"""The writing end of a segment log: spool and the collector's log use it. A journal maps its segments instead."""

import contextlib
import errno
import os
from pathlib import Path

from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import SEGMENT_BYTES
from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.storage.record import Record, encode, reframe
from chiplog_schemas.storage.segment_format import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_header,
    encode_header,
    list_segments,
    read_segment,
    segment_name,
)
from chiplog_schemas.storage.watermark import fsync_parents, open_watermark

END_NAME = "end"  # next to the segments: the number after the last synced record, see watermark.py
# Next to the segments of a spool: the number after its last events of ranks that the collector lacks, else 0.
OWED_NAME = "owed"
_UNKNOWN_END = 1 << 32  # numbers to skip when the last one assigned is unknown: more than a log ever holds
_IOV_MAX = 512  # buffers per writev; the kernel allows 1,024


class SegmentError(OSError):
    """A segment that cannot be used: its header is damaged or of another owner."""


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


class SegmentLog:
    """Append records to memory, then commit them to disk with one write and one fdatasync.

    One process, one thread. Opening recovers: it cuts off a torn tail, and the next number follows the last valid
    record. Raises OSError when the directory or the disk refuses; appended records stay, and the next commit tries
    again.
    """

    def __init__(self, directory: Path, owner: bytes, *, segment_bytes: int = SEGMENT_BYTES, first: int = 0) -> None:
        self.directory = directory
        self.owner = owner
        self.next_number = first
        self.pending_bytes = 0
        self.torn_bytes = 0  # cut off at opening
        self.lost_tail: tuple[int, int] | None = None  # numbers that were synced and are gone
        self._segment_bytes = segment_bytes
        self._segments: list[tuple[int, int]] = []  # (base, bytes) of every segment, the newest last
        self._pending: list[bytes | memoryview] = []
        self._pending_first = 0  # number of the first pending record
        self._descriptor = -1
        ensure_private_dir(directory)
        self._recover()
        self._end = open_watermark(directory / END_NAME)
        self._recover_end()

    # -- state --

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(size for _, size in self._segments)

    @property
    def first_number(self) -> int:
        """The lowest number on disk or pending; `next_number` without one."""
        if self._segments:
            return self._segments[0][0]
        return self._pending_first if self._pending else self.next_number  # safeguard: waiting-records-count

    @property
    def at_segment_start(self) -> bool:
        """Return True if the next record will be the first of a segment."""
        return self._descriptor < 0 and not self._pending

    def segments(self) -> list[tuple[int, Path]]:
        """Return (base, path) of the segments, in order."""
        return [(base, self.directory / segment_name(base)) for base, _ in self._segments]

    # -- writing --

    def append(self, kind: int, payload: bytes | memoryview, version: int = 1) -> int:
        """Add a record to the next commit and return its number."""
        number = self.next_number
        self._push(encode(kind, number, payload, version))
        return number

    def skip_to(self, number: int) -> None:
        """Assign no number below this one from now on. Nothing may be pending."""
        assert not self._pending
        if number > self.next_number:
            self._close_segment()
            self.next_number = number

    def renew(self, owner: bytes) -> None:
        """Give the segments from the next one on another owner. Nothing may be pending."""
        assert not self._pending
        self._close_segment()
        self.owner = owner

    def append_encoded(self, record: bytes) -> int:
        """Add a record that `record.encode` made for this log's next number, and return that number."""
        number = self.next_number
        self._push(record)
        return number

    def append_record(self, record: Record) -> int:
        """Add a record of another log under this log's next number. Its payload is not copied or verified."""
        number = self.next_number
        self._push(*reframe(record, number))
        return number

    def _push(self, *parts: bytes | memoryview) -> None:
        if not self._pending:
            self._pending_first = self.next_number
        self._pending.extend(parts)
        self.pending_bytes += sum(map(len, parts))
        self.next_number += 1

    def commit(self, *, sync: bool = True) -> int:
        """Write and sync everything appended; return the bytes written.

        On OSError the file is truncated to its last complete commit, and the records wait for the next call.
        """
        if not self._pending:
            return 0
        count = self.pending_bytes
        if self._descriptor < 0:
            self._open_segment()
        base, size = self._segments[-1]
        try:
            self._write_all(self._pending)
            if sync:  # safeguard: commit-synced
                os.fdatasync(self._descriptor)
        except OSError:
            self._cut(size)
            raise  # safeguard: failed-commit-waits
        self._segments[-1] = (base, size + count)
        self._pending = []
        self.pending_bytes = 0
        if sync:
            self._write_end()
        if size + count >= self._segment_bytes:
            self._close_segment()
        return count

    def _write_all(self, parts: list[bytes | memoryview]) -> None:
        index = 0
        while index < len(parts):
            batch = parts[index : index + _IOV_MAX]
            expected = sum(map(len, batch))
            written = os.writev(self._descriptor, batch)
            if written < expected:  # a full disk writes what fits: continue, or get the error
                rest = memoryview(b"".join(batch))[written:]
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            index += len(batch)

    def close(self) -> None:
        """Close the files. What was appended and not committed is dropped."""
        self._close_segment()
        if self._end is not None:
            self._end.close()
            self._end = None

    # -- trimming --

    def trim(self, before: int) -> int:
        """Delete the segments all of whose numbers are below `before`; return how many."""
        n_deleted = 0
        while len(self._segments) > 1 and self._segments[1][0] <= before:
            self._delete_oldest()
            n_deleted += 1
        if len(self._segments) == 1 and self._descriptor < 0 and before >= self.next_number and not self._pending:
            self._delete_oldest()
            n_deleted += 1
        return n_deleted

    def _delete_oldest(self) -> None:
        base, _ = self._segments.pop(0)
        try:
            os.unlink(self.directory / segment_name(base))
        except OSError:
            pass  # already removed, or a read-only disk: the file is not needed, and the next start tries again

    # -- recovery --

    def _recover(self) -> None:
        found = list_segments(self.directory)
        while found:
            base, path = found[-1]
            header = decode_header(path.read_bytes()[:SEGMENT_HEADER_BYTES])
            if header is not None and header.owner != self.owner:
                raise SegmentError(f"{path} belongs to {header.owner.hex()}, not to {self.owner.hex()}")
            end, last, torn = self._valid_length(path)
            self.torn_bytes += torn
            if end == 0 and (header is None or last is None):
                os.unlink(path)  # its first commit never completed, so no record in it was acknowledged
                found.pop()
                self.next_number = max(self.next_number, base)
                continue
            if torn:
                os.truncate(path, end)
            # safeguard: unsynced-tail-synced
            _sync_file(path)  # a killed writer may have written this without a sync; from now on it counts as synced
            self.next_number = max(self.next_number, base if last is None else last + 1)
            break
        self._segments = [(base, path.stat().st_size) for base, path in found]
        # The recovered segment stays sealed: the next commit starts a new one.

    def _recover_end(self) -> None:
        """Never reuse numbers that were on stable storage: the next hop may have received them."""
        if not self._segments:
            # safeguard: directory-names-synced
            fsync_parents(self.directory)  # new, perhaps with the directories around it
        end = self._end.get() if self._end is not None and self._end.is_valid else None
        if end is None and self._segments:
            # safeguard: unknown-end-skips-numbers
            self.next_number += _UNKNOWN_END  # the last number assigned is unknown
            self._write_end()
        elif end is not None and end > self.next_number:
            self.lost_tail = (self.next_number, end - 1)
            self.next_number = end  # safeguard: lost-end-numbers-not-reused
            self.persist_end()
        elif end != self.next_number:
            self._write_end()  # a power failure had set it back

    def persist_end(self) -> None:
        """Store `next_number` durably when no record holds it: numbers were lost and declared."""
        self._write_end()
        if self._end is not None:
            with contextlib.suppress(OSError):  # then a power failure now can lead to reused numbers
                self._end.sync()

    def _write_end(self) -> None:
        if self._end is not None:
            with contextlib.suppress(OSError):  # a hint for the next start; the records themselves are synced
                self._end.set(self.next_number)

    def _valid_length(self, path: Path) -> tuple[int, int | None, int]:
        """Return (offset after the last valid record, its number, bytes after it)."""
        size = path.stat().st_size
        end, last = 0, None
        for item in read_segment(path, sealed=False):
            if isinstance(item, Record):
                end, last = item.end, item.number
        return end, last, size - end

    def _open_segment(self) -> None:
        base = self._pending_first
        path = self.directory / segment_name(base)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            header = encode_header(SegmentHeader(self.owner, base, now_us()))
            if os.write(descriptor, header) < len(header):
                raise OSError(errno.ENOSPC, "no room for a segment's header", str(path))
            os.fdatasync(descriptor)
            sync_directory(self.directory)  # safeguard: segment-name-synced
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._segments.append((base, SEGMENT_HEADER_BYTES))

    def _cut(self, size: int) -> None:
        # Even if truncate fails: the next commit starts with the same bytes and overwrites the tail.
        os.lseek(self._descriptor, size, os.SEEK_SET)  # safeguard: failed-truncate-overwritten
        try:
            os.ftruncate(self._descriptor, size)
        except OSError:
            pass  # a disk that refuses this too: after a crash the checksums identify the torn records

    def _close_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
