"""The segment log: a directory of append-only files of records. Journal, spool and the collector's log use it.

A segment is a file `{number:020d}.seg`. In spool and log the number is that of its first record. In a journal, whose
segments are allocated before that number is known, it only increases. A segment begins with

    offset  size  field
         0     8  magic      'CHIPSEG' and the format's version, 1
         8     4  crc        CRC-32 of bytes 12..48
        12     4  flags      0
        16    16  owner      producer, spool or log that assigned the numbers
        32     8  base       number of the first record
        40     8  created    µs since the epoch

followed by records (record.py). Numbers increase; a jump is a gap that the owner declares elsewhere. Zeros after the
last record are preallocated space. Only the newest segment is written to.
"""

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import NUMBER_LIMIT, RECORD_BYTES_MAX, SEGMENT_BYTES
from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.storage.record import (
    HEADER_BYTES,
    CorruptRange,
    Record,
    encode,
    reframe,
    scan_records,
)
from chiplog_schemas.storage.watermark import fsync_parents, open_watermark

SEGMENT_MAGIC = b"CHIPSEG\x01"
SEGMENT_HEADER_BYTES = 48
END_NAME = "end"  # next to the segments: the number after the last synced record, see watermark.py
_SEGMENT_HEADER = struct.Struct("<II16sQq")
_UNKNOWN_END = 1 << 32  # numbers to skip when the last one assigned is unknown: more than a log ever holds
_IOV_MAX = 512  # buffers per writev; the kernel allows 1,024


class SegmentError(OSError):
    """A segment that cannot be used: its header is damaged or of another owner."""


@dataclass(slots=True)
class SegmentHeader:
    """The first 48 bytes of a segment."""

    owner: bytes
    base: int
    created_us: int


def encode_header(header: SegmentHeader) -> bytes:
    """Return the 48 bytes that begin a segment."""
    rest = _SEGMENT_HEADER.pack(0, 0, header.owner, header.base, header.created_us)[4:]
    return SEGMENT_MAGIC + struct.pack("<I", crc32(rest)) + rest


def decode_header(data: bytes | memoryview) -> SegmentHeader | None:
    """Read the first 48 bytes of a segment; None when they are damaged."""
    if len(data) < SEGMENT_HEADER_BYTES or bytes(data[:8]) != SEGMENT_MAGIC:
        return None
    crc, _flags, owner, base, created_us = _SEGMENT_HEADER.unpack_from(data, 8)
    if crc32(bytes(data[12:SEGMENT_HEADER_BYTES])) != crc:
        return None
    return SegmentHeader(owner, base, created_us)


def segment_name(base: int) -> str:
    """Return the file name of the segment that begins with this number."""
    return f"{base:020d}.seg"


def list_segments(directory: Path) -> list[tuple[int, Path]]:
    """Return (base, path) of the segments of a log, in order; none for an absent directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = [(int(name[:-4]), directory / name) for name in names if name.endswith(".seg") and name[:-4].isdecimal()]
    return sorted(entry for entry in found if entry[0] < NUMBER_LIMIT)  # no writer uses a higher number


def log_owner(directory: Path) -> bytes | None:
    """Return the owner of the segments in a directory, from the oldest valid header; None without one."""
    for _, path in list_segments(directory):
        with open(path, "rb") as segment:
            header = decode_header(segment.read(SEGMENT_HEADER_BYTES))
        if header is not None:
            return header.owner
    return None


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def read_segment(path: Path, *, sealed: bool = True) -> Iterator[Record | CorruptRange]:
    """Read all records of a segment file.

    A damaged segment header is itself a CorruptRange; its records are still read.
    """
    data = path.read_bytes()
    header = decode_header(data)
    if header is None:
        if len(data) <= SEGMENT_HEADER_BYTES:
            return
        yield CorruptRange(0, SEGMENT_HEADER_BYTES, "segment header damaged")
    yield from scan_records(data, SEGMENT_HEADER_BYTES, first=-1 if header is None else header.base, sealed=sealed)


class SegmentLog:
    """The writing end of a segment log on disk: append to memory, then commit with one write and one fdatasync.

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


class LogReader:
    """The reading end: follow a segment log record by record, also while another process writes it.

    The `limit` of `read` is the number after the last record that may be read (the writer's synced position).
    """

    def __init__(self, directory: Path, next_number: int = 0) -> None:
        self.next_number = next_number
        self._directory = directory
        self._descriptor = -1
        self._base = -1
        self._offset = 0
        self._first = 0  # expected number of the next record

    def read(self, limit: int, max_bytes: int) -> list[Record | CorruptRange]:
        """Return the next records below `limit`, about `max_bytes` of them; empty when there are none yet.

        Damage in a segment that has a successor is returned in its place. Raises OSError.
        """
        found: list[Record | CorruptRange] = []
        while not found and self.next_number < limit:
            if self._descriptor < 0 and not self._open():
                break
            sealed = self._is_sealed()  # checked before the read: a sealed segment does not grow
            rest = os.fstat(self._descriptor).st_size - self._offset + 1
            # First the requested size, then one record of any size, then everything: a long damaged stretch.
            for size in (max_bytes, HEADER_BYTES + RECORD_BYTES_MAX, max(rest, max_bytes)):
                data = os.pread(self._descriptor, size, self._offset)
                end = self._collect(data, found, limit, max_bytes, sealed=sealed, cut=len(data) == size)
                if end or len(data) < size:
                    break
            self._offset += end
            if not found and end == 0 and (not sealed or not self._open(after=self._base)):
                break
        return found

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _collect(
        self, data: bytes, found: list[Record | CorruptRange], limit: int, max_bytes: int, *, sealed: bool, cut: bool
    ) -> int:
        end = 0
        damage: list[CorruptRange] = []  # until the record after it shows that it was not read before
        for item in scan_records(data, first=self._first, sealed=sealed, cut=cut):
            if isinstance(item, CorruptRange):
                damage.append(CorruptRange(self._offset + item.start, self._offset + item.end, item.reason))
                end = item.end
                continue
            if item.number >= limit:
                break
            if item.number >= self.next_number:
                self.next_number = item.number + 1
                found += [*damage, item]
            damage = []
            end, self._first = item.end, item.number + 1
            if self.next_number >= limit or end >= max_bytes:
                break
        found += damage
        return end

    def _is_sealed(self) -> bool:
        segments = list_segments(self._directory)
        return bool(segments) and segments[-1][0] > self._base

    def _open(self, after: int = -1) -> bool:
        segments = [entry for entry in list_segments(self._directory) if entry[0] > after]
        if not segments:
            return False
        below = [entry for entry in segments if entry[0] <= self.next_number]
        base, path = below[-1] if below and after < 0 else segments[0]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # trimmed between listing and opening
        self.close()
        self._descriptor = descriptor
        self._base = self._first = base
        self._offset = SEGMENT_HEADER_BYTES
        return True
