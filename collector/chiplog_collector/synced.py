"""How far the log is on stable storage: one number, from the receiver to the index, through a mapped page.

The index applies nothing beyond it: after a power failure the log may lose what was never synced, and DuckDB must not
know more than the log.
"""

import mmap
import os
import struct
from pathlib import Path

_NUMBER = struct.Struct("<Q")
_PAGE_BYTES = 4096


class Synced:
    """The page. `writable` for the receiver, who sets it anew at every start."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if writable else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < _PAGE_BYTES:
                os.posix_fallocate(descriptor, 0, _PAGE_BYTES)
            self._page = mmap.mmap(descriptor, _PAGE_BYTES)
        finally:
            os.close(descriptor)

    def set(self, next_number: int) -> None:
        """Publish the number behind the last synced record."""
        _NUMBER.pack_into(self._page, 0, next_number)

    def get(self) -> int:
        """Return the number behind the last synced record."""
        number: int = _NUMBER.unpack_from(self._page, 0)[0]
        return number
