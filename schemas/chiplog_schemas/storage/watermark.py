"""How far a log is on stable storage: one number in a small file.

    offset  size  field
         0     8  number   after the last synced record
         8     4  check    CRC-32 of it

Next to the segments of a log it shows at the next start whether their end is gone. In the collector's directory the
receiver writes it for the index, which applies nothing beyond it: after a power failure the log may lose what was never
synced, and DuckDB must not contain more than the log. The file itself is not synced: it may only lag behind the log.
The file is read and written, not mapped: truncating a mapped file kills the processes that read it.
"""

import os
import struct
from pathlib import Path
from zlib import crc32

from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.limits import NUMBER_LIMIT

_NUMBER = struct.Struct("<Q")
_PAGE = struct.Struct("<QI")
_PAGE_BYTES = 4096


class Watermark:
    """The file. `writable` for the owner of the log. Raises OSError."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._descriptor = -1
        self._last = 0  # the newest valid number
        self.is_valid = False  # whether the file had a valid number at all
        self._writable = writable
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if writable else 0), 0o600)
        if writable and os.fstat(self._descriptor).st_size < _PAGE_BYTES:
            os.posix_fallocate(self._descriptor, 0, _PAGE_BYTES)  # a disk that fills up later still accepts the number
            os.pwrite(self._descriptor, _PAGE.pack(0, crc32(_NUMBER.pack(0))), 0)
            os.fsync(self._descriptor)  # once: afterwards the number may be old, but not unreadable
            return
        self.get()

    def set(self, next_number: int) -> None:
        """Publish the number after the last synced record. Raises OSError."""
        packed = _NUMBER.pack(next_number)
        os.pwrite(self._descriptor, _PAGE.pack(next_number, crc32(packed)), 0)
        self._last = next_number
        self.is_valid = True

    def sync(self) -> None:
        """Make the number durable too, for when it is ahead of the log. Raises OSError."""
        os.fdatasync(self._descriptor)

    def get(self) -> int:
        """Return the number after the last synced record; the previous one while the content is damaged."""
        if not self._writable and not self.exists_on_disk:
            self._reopen()
        data = os.pread(self._descriptor, _PAGE.size, 0)
        if len(data) == _PAGE.size:
            number, check = _PAGE.unpack(data)
            if crc32(data[: _NUMBER.size]) == check and number < NUMBER_LIMIT:  # safeguard: watermark-checked
                self._last = number
                self.is_valid = True
        return self._last

    @property
    def exists_on_disk(self) -> bool:
        """Return True if the file still has its name: a new index process could not find it otherwise."""
        try:
            found, own = os.stat(self._path), os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def _reopen(self) -> None:
        """Reopen the file that the receiver created in place of a removed one."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # not yet: the previous number counts
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def open_watermark(path: Path) -> Watermark | None:
    """Open the file of a log's owner; None when the disk refuses, because the log works without it."""
    try:
        return Watermark(path, writable=True)
    except OSError:
        return None


def fsync_parents(directory: Path) -> None:
    """Make the names of a directory and of its parents durable, as far as this process may read them."""
    for parent in directory.absolute().parents:
        try:
            sync_directory(parent)
        except OSError:
            return
