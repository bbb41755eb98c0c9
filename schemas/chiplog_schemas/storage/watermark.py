"""How far a log is on stable storage: one number in a small file.

    offset  size  field
         0     8  number   behind the last synced record
         8     4  check    CRC-32 of it

Beside the segments of a log it tells at the next start whether their end is gone. In the collector's directory it goes
from the receiver to the index, who applies nothing beyond it: after a power failure the log may lose what was never
synced, and DuckDB must not know more than the log. The file itself is not synced: it may only tell less than is there.
Read and written, not mapped: somebody who cuts a mapped file short kills those who look at it.
"""

import os
import struct
from pathlib import Path
from zlib import crc32

from chiplog_schemas.limits import NUMBER_LIMIT

_NUMBER = struct.Struct("<Q")
_PAGE = struct.Struct("<QI")
_PAGE_BYTES = 4096


class Watermark:
    """The file. `writable` for the one who owns the log. Raises OSError."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._descriptor = -1
        self._last = 0  # the newest number that was sound
        self.is_valid = False  # whether one was there at all
        self._writable = writable
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if writable else 0), 0o600)
        if writable and os.fstat(self._descriptor).st_size < _PAGE_BYTES:
            os.posix_fallocate(self._descriptor, 0, _PAGE_BYTES)  # a disk that fills up later takes the number too
            os.pwrite(self._descriptor, _PAGE.pack(0, crc32(_NUMBER.pack(0))), 0)
            os.fsync(self._descriptor)  # once: afterwards it may be old, but not unreadable
            return
        self.get()

    def set(self, next_number: int) -> None:
        """Publish the number behind the last synced record. Raises OSError."""
        packed = _NUMBER.pack(next_number)
        os.pwrite(self._descriptor, _PAGE.pack(next_number, crc32(packed)), 0)
        self._last = next_number
        self.is_valid = True

    def sync(self) -> None:
        """Make it survive a power failure too: where it tells more than the log does. Raises OSError."""
        os.fdatasync(self._descriptor)

    def get(self) -> int:
        """Return the number behind the last synced record; as long as what is there is damaged, the one before."""
        if not self._writable and not self.exists_on_disk:
            self._reopen()
        data = os.pread(self._descriptor, _PAGE.size, 0)
        if len(data) == _PAGE.size:
            number, check = _PAGE.unpack(data)
            if crc32(data[: _NUMBER.size]) == check and number < NUMBER_LIMIT:
                self._last = number
                self.is_valid = True
        return self._last

    @property
    def exists_on_disk(self) -> bool:
        """Whether the file still has its name: an index that starts would not find it otherwise."""
        try:
            found, own = os.stat(self._path), os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def _reopen(self) -> None:
        """Look into the file that the receiver made in place of one that was taken away."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # not yet: the number before counts
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
    """Open the file of a log's owner; None when the disk refuses, for the log can do without."""
    try:
        return Watermark(path, writable=True)
    except OSError:
        return None


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_parents(directory: Path) -> None:
    """Make the names of a directory and of those around it durable, as far as we may read these."""
    for parent in directory.absolute().parents:
        try:
            sync_directory(parent)
        except OSError:
            return
