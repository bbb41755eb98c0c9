"""Results that are too large for memory, in files without a name, and how much of a disk they may use together."""

import os
import tempfile
import threading
from pathlib import Path

from chiplog_schemas.limits import MIB, RESULTS_BYTES_MAX
from chiplog_schemas.storage.content_files import insufficient_space_reason

_CHECK_BYTES = 16 * MIB  # the disk is asked for its free space before each further so many bytes


class NoRoomError(OSError):
    """A result cannot be written. The text is one line with the remedy.

    is_shared: the room is taken by the results of other clients, who read them soon.
    """

    def __init__(self, message: str, is_shared: bool = False) -> None:
        super().__init__(message)
        self.is_shared = is_shared


class ResultSpace:
    """The disk space for the results of one process. Thread-safe.

    directory: of the files; a removed file's space is free once it is closed, also after a crash.
    """

    def __init__(self, directory: Path, bytes_max: int = RESULTS_BYTES_MAX) -> None:
        self.directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._n_bytes = 0

    @property
    def n_bytes(self) -> int:
        """The bytes that are in use."""
        with self._lock:
            return self._n_bytes

    def create(self) -> "ResultFile":
        """Return a new file. Raises OSError."""
        return ResultFile(self)

    def _reserve(self, n_bytes: int, of_file: int) -> None:
        with self._lock:
            if self._n_bytes + n_bytes > self._bytes_max:  # safeguard: results-on-disk-bounded
                size, limit = of_file + n_bytes, self._bytes_max
                is_shared = size <= limit
                remedy = "try again later" if is_shared else "select fewer rows or columns, or aggregate"
                whose = (
                    "results that clients are still reading fill" if is_shared else f"result of {size} bytes exceeds"
                )
                raise NoRoomError(f"{whose} the limit of {limit} bytes on disk; {remedy}", is_shared)
            self._n_bytes += n_bytes

    def _release(self, n_bytes: int) -> None:
        with self._lock:
            self._n_bytes -= n_bytes


class ResultFile:
    """One result. It is written by one thread, then read by another."""

    def __init__(self, space: ResultSpace) -> None:
        self._space = space
        self._file = tempfile.TemporaryFile(dir=space.directory, buffering=0)  # noqa: SIM115 - closed by close()
        self._n_checked = 0
        self.n_bytes = 0

    def write(self, part: "bytes | bytearray | memoryview") -> None:
        """Append bytes. Raises NoRoomError, or OSError for another fault of the disk."""
        view = memoryview(part).cast("B")
        if self.n_bytes + len(view) > self._n_checked:
            wanted = max(_CHECK_BYTES, len(view))
            # safeguard: results-leave-room-for-events
            if reason := insufficient_space_reason(self._space.directory, wanted):
                raise NoRoomError(f"result of more than {self.n_bytes} bytes has no room: {reason}, or select less")
            self._n_checked = self.n_bytes + wanted
        self._space._reserve(len(view), self.n_bytes)
        self.n_bytes += len(view)
        while view:
            view = view[self._file.write(view) :]

    def read(self, offset: int, n_bytes: int) -> bytes:
        """Return bytes by offset; fewer at the end. Raises OSError."""
        return os.pread(self._file.fileno(), n_bytes, offset)

    def close(self) -> None:
        """Free the space. May be called twice."""
        if not self._file.closed:
            self._file.close()
            self._space._release(self.n_bytes)
