"""The files of a journal: its mapped head page, and a segment, which is mapped until it is full.

Without a disk a segment is memory.
"""

import errno
import mmap
import os
from pathlib import Path
from typing import Any

from chiplog.safety.process_number import process_number
from chiplog_schemas.interrupts import is_interrupt, unless_interrupt
from chiplog_schemas.process.descriptors import OwnedDescriptor, map_file
from chiplog_schemas.storage.journal_dir import (
    ACKED,
    ACKED_OFFSET,
    FLAGS,
    FLAGS_OFFSET,
    IDENTITY_OFFSET,
    PRODUCED,
    PRODUCED_OFFSET,
    PROMISED,
    PROMISED_OFFSET,
    encode_head,
    head_bytes,
)
from chiplog_schemas.storage.record import HEADER_BYTES, unpack_header
from chiplog_schemas.storage.segment_format import SEGMENT_HEADER_BYTES

_MADV_POPULATE_WRITE = 23  # Linux 5.14


class Segment:
    """One segment, all zeros until a journal begins it. `end` and `next_seq` are valid once it is full.

    `memory` is its mapping, which holds a descriptor. A full segment with a file is unmapped: without an agent hundreds
    of them may wait, and the training needs its descriptors.
    """

    __slots__ = ("_process", "end", "first_seq", "memory", "next_seq", "path", "size")

    def __init__(self, path: Path | None, size: int) -> None:
        self._process = process_number()
        self.path = path
        self.size = size
        self.first_seq = 0
        self.end = 0
        self.next_seq = 0
        self.memory: Any  # mmap.mmap or None; Any, so that append needs no check
        if path is None:
            try:
                self.memory = mmap.mmap(-1, size)
                self._prefault()
            except unless_interrupt(OSError):  # too many mappings: small blocks come from the heap
                self.memory = bytearray(size)
            return
        opened = OwnedDescriptor(_open_new(path, os.O_EXCL))
        try:
            os.posix_fallocate(opened.number, 0, size)  # safeguard: blocks-allocated-first
            self.memory = map_file(opened.number, size)
            opened.check()
            self._prefault()
        except BaseException as error:
            # A signal handler that called finish() has removed the directory: its exit must pass.
            self.delete()  # safeguard: exit-passes-removed-segment
            if isinstance(error, (OSError, ValueError)) and not is_interrupt(error):
                raise OSError(f"{path}: {error}") from error
            raise
        finally:
            opened.close()

    def _prefault(self) -> None:
        try:
            self.memory.madvise(_MADV_POPULATE_WRITE)
        except unless_interrupt(OSError, ValueError):
            for offset in range(0, self.size, mmap.PAGESIZE):  # an older kernel: touch each page by hand
                self.memory[offset] = 0

    def unmap(self) -> None:
        """Unmap a full segment, as soon as no reader holds a view of it."""
        if self.path is not None:
            self.memory = None

    def piece(self, start: int, end: int) -> memoryview:
        """Return these bytes, from the file if the segment is not mapped any more. Raises OSError."""
        memory = self.memory
        if memory is not None:
            return memoryview(memory)[start:end]
        assert self.path is not None, "what has no file stays mapped"
        opened = OwnedDescriptor(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            found = os.pread(opened.number, end - start, start)
            opened.check()
        finally:
            opened.close()
        if len(found) != end - start:
            raise OSError(f"{self.path} ends at {start + len(found)}, not at {end}")
        return memoryview(found)

    def delete(self) -> None:
        """Remove the file, unless it is that of the process that forked this one."""
        if self._process != process_number():  # safeguard: child-keeps-parents-segments
            return
        if self.path is not None:
            try:
                os.unlink(self.path)
            except unless_interrupt(OSError):  # a read-only disk, or removed by hand: the quota counts it as removed
                pass


class HeadPage:
    """A journal's mapped head page: its producer, and how much was produced and acknowledged. Raises OSError."""

    def __init__(self, path: Path, producer: bytes, identity: bytes) -> None:
        descriptor = _open_new(path, 0)
        try:
            size = head_bytes(identity)
            os.posix_fallocate(descriptor, 0, size)
            self.memory = map_file(descriptor, size)
        finally:
            os.close(descriptor)
        self._producer = producer
        self.set_identity(identity)

    def set_identity(self, identity: bytes) -> None:
        """Replace the identity, if it fits. Skip the counters in between: other threads write them at any time."""
        content = encode_head(self._producer, identity)
        if len(content) <= len(self.memory):
            self.memory[:ACKED_OFFSET] = content[:ACKED_OFFSET]
            self.memory[IDENTITY_OFFSET : len(content)] = content[IDENTITY_OFFSET:]

    # Each counter has one writer at a time, and is written alone, so no write restores an older value of another one.

    def acknowledge(self, acked: int) -> None:
        """Write that everything before this seq is on stable storage at the next hop."""
        self._write(ACKED_OFFSET, ACKED.pack(acked))

    def finish(self, produced: int, flags: int) -> None:
        """Write how many seqs there were, and how the run ended. Before that, appends write `produced`."""
        self._write(PRODUCED_OFFSET, PRODUCED.pack(produced))
        self._write(FLAGS_OFFSET, FLAGS.pack(flags))

    def promise(self, count: int) -> None:
        """Write how many promised events have no seq yet."""
        self._write(PROMISED_OFFSET, PROMISED.pack(count))

    def _write(self, offset: int, packed: bytes) -> None:
        self.memory[offset : offset + len(packed)] = packed


def _open_new(path: Path, flags: int) -> int:
    """Open a new file with the sticky bit: systemd-tmpfiles removes no such file, however old. Raises OSError."""
    try:
        # safeguard: cleaner-leaves-journal
        return os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o1600)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise
        # A file system that refuses the bit: the hourly touch alone keeps the file.
        return os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def find_offset(view: memoryview, end: int, number: int) -> int:
    """Return where the record with this seq begins in a segment whose records end at `end`."""
    position = SEGMENT_HEADER_BYTES
    while position < end:
        _, _, length, _, _, _, seq = unpack_header(view, position)
        if seq >= number:
            break
        position += HEADER_BYTES + length
    return position


def split_at(records: memoryview, max_bytes: int) -> tuple[int, int]:
    """Return (size, next seq) of the records that fit into max_bytes, at least one."""
    at = next_seq = 0
    while at < len(records):
        _, _, length, _, _, _, seq = unpack_header(records, at)
        following = at + HEADER_BYTES + length
        if following > max_bytes and at:
            break
        at, next_seq = following, seq + 1
    return at, next_seq
