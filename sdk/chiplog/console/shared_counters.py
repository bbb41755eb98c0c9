"""Progress of the relay, and lines that are handed over, in memory that outlives the helper."""

import fcntl
import mmap
import struct
from collections.abc import Callable

from chiplog_schemas.limits import CONSOLE_LINE_CHARS_MAX
from chiplog_schemas.process.descriptors import map_file

_PARTIAL_BYTES = 36_864  # pages; the longest line that is recorded has up to 4 bytes for each character
assert 4 + 4 * (CONSOLE_LINE_CHARS_MAX + 1) <= _PARTIAL_BYTES


class SharedCounters:
    """One process counts; the rank and a successor of the helper read.

    offset  size  field
         0     8  line_no of the last line
         8     4  1 during a write to a target, which may block: the helper does not hang then
        16    16  of stream 1: bytes passed, bytes recorded
        32    16  of stream 2
        48     8  of stream 1: bytes that are being moved: a killed process may have moved so many and not counted
        56     8  of stream 2
        64     8  lines that were dropped and are not declared yet
      4096 36864  of stream 1: an unterminated line, as its size of 4 bytes and its bytes
     40960 36864  of stream 2

    mapping: `mmap.mmap` imports less, but is only for a process without code of the training.
    """

    SIZE = 4096 + 2 * _PARTIAL_BYTES
    _number = struct.Struct("<Q")
    _length = struct.Struct("<I")

    def __init__(self, descriptor: int, mapping: Callable[[int, int], mmap.mmap] = map_file) -> None:
        self._descriptor = descriptor
        self._memory = mapping(descriptor, self.SIZE)

    def lock(self, *, wait: bool = False) -> bool:
        """Become the one process that moves bytes: two would wait for each other's. Return True if this process is it.

        The lock is released when the process exits or the descriptor is closed.
        """
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            return False
        return True

    def unlock(self) -> None:
        """Release the lock."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _get(self, offset: int) -> int:
        return int(self._number.unpack_from(self._memory, offset)[0])

    def _set(self, offset: int, value: int) -> None:
        self._number.pack_into(self._memory, offset, value)

    @property
    def line_no(self) -> int:
        """The number of the last line, over both streams."""
        return self._get(0)

    @line_no.setter
    def line_no(self, value: int) -> None:
        self._set(0, value)

    @property
    def is_waiting(self) -> bool:
        """Whether a write to a target is in progress. It may block for any time."""
        return self._get(8) != 0

    @is_waiting.setter
    def is_waiting(self, value: bool) -> None:
        self._set(8, int(value))

    @property
    def n_dropped(self) -> int:
        """The number of lines that were dropped and are not declared yet."""
        return self._get(64)

    @n_dropped.setter
    def n_dropped(self, value: int) -> None:
        self._set(64, value)

    def passed(self, stream: int) -> int:
        """Return how many bytes of a stream were moved to its target."""
        return self._get(16 * stream)

    def recorded(self, stream: int) -> int:
        """Return how many of those bytes were recorded as lines or declared lost."""
        return self._get(16 * stream + 8)

    def note_passed(self, stream: int, n_bytes: int) -> None:
        """Count bytes that were moved."""
        self._set(16 * stream, self.passed(stream) + n_bytes)

    def note_moving(self, stream: int, n_bytes: int) -> None:
        """Note how many bytes are about to be moved; 0 once those that were are counted."""
        self._set(40 + 8 * stream, n_bytes)

    def count_moving(self, stream: int) -> None:
        """Count what a process that was killed may have moved."""
        self.note_passed(stream, self._get(40 + 8 * stream))
        self.note_moving(stream, 0)

    def note_recorded(self, stream: int, n_bytes: int) -> None:
        """Count bytes that became lines."""
        self._set(16 * stream + 8, self.recorded(stream) + n_bytes)

    def set_partial(self, stream: int, partial: bytes) -> None:
        """Hand over the begin of a line whose end was not read yet."""
        offset = 4096 + (stream - 1) * _PARTIAL_BYTES
        partial = partial[: _PARTIAL_BYTES - 4]
        self._memory[offset + 4 : offset + 4 + len(partial)] = partial
        self._length.pack_into(self._memory, offset, len(partial))

    def take_partial(self, stream: int) -> bytes:
        """Return what was handed over last, and clear it."""
        offset = 4096 + (stream - 1) * _PARTIAL_BYTES
        length = self._length.unpack_from(self._memory, offset)[0]
        if not length:
            return b""
        self._length.pack_into(self._memory, offset, 0)
        return bytes(self._memory[offset + 4 : offset + 4 + length])

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()
