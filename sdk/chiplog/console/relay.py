"""Relay bytes unchanged from a pipe or pseudo-terminal to a process's original descriptor, and return them to record.

    stdout ──► pipe or pty ── read ──► lines
                                └──── write ──► descriptor before

A process that is killed loses the chunk that it has read and not written. What it has not read stays in the pipe for
the next process.
"""

import errno
import fcntl
import json
import os
import select
import struct
import termios
from collections.abc import Iterator

from chiplog.console.stream_fds import StreamFds

CHUNK_BYTES = 65_536  # of one read, and the most that is lost with a killed process
CHUNKS_MAX = 64  # relayed at once: four times the capacity of the largest pipe
_GONE = (errno.EPIPE, errno.EIO)  # no reader is left, and none will come back
_WAIT_MS = 1_000  # one wait for a target that is full; then the write is retried
_ROOM_WAIT_MS = 20  # for a full target that must not block; then the next tick tries again
_BEGUN_BYTES_MAX = 36_864  # of an unterminated line: more than is recorded of it, at up to 4 bytes for each character


class StreamRelay:
    """Write what a process prints to its original target, in order, and return it."""

    def __init__(self, fds: StreamFds) -> None:
        self.fds = fds
        self.has_ended = False  # all writers have closed, and everything was relayed
        self.reader_closed = False  # the target has no reader
        self.write_error: OSError | None = None  # why the last write failed; a later one may succeed

    def relay(self, n_bytes: int = CHUNK_BYTES) -> bytes:
        """Relay the available bytes, at most `n_bytes`, and return them; b"" if there are none."""
        try:
            data = os.read(self.fds.source, n_bytes)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""  # EIO: all descriptors of the terminal are closed
        self.has_ended = not data
        self._write(data)
        return data

    def relay_all(self, *, waits: bool = True) -> Iterator[bytes]:
        """Yield the available bytes, chunk by chunk. Ends even if a process keeps writing.

        waits: until the target has room for them; else it ends once the target has none.
        """
        n_bytes = CHUNK_BYTES if waits else select.PIPE_BUF  # a pipe that is ready takes PIPE_BUF bytes at once
        for _ in range(CHUNKS_MAX * CHUNK_BYTES // n_bytes):
            if not waits and not _has_room(self.fds.target, _ROOM_WAIT_MS):
                return
            data = self.relay(n_bytes)
            if not data:
                return
            yield data

    def close(self) -> None:
        """Close everything, the target too: its reader waits for the end."""
        for descriptor in self.fds.fds:
            os.close(descriptor)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.reader_closed:
            try:
                view = view[os.write(self.fds.target, view) :]
                self.write_error = None
            except BlockingIOError:
                _has_room(self.fds.target, _WAIT_MS)  # a non-blocking pipe that is full
            except OSError as error:
                if error.errno in _GONE:
                    self.reader_closed = True
                else:
                    self.write_error = error
                    return  # a full disk: the output would be lost without capture too


class RelayLock:
    """Let one process relay at a time, and hand over the number of the last line and begun lines, in a file in memory.

    offset  field
         0  number of the last line over both streams, 8 bytes
         8  JSON: by stream, a line whose end was not read yet, with a character for each byte
    """

    _number = struct.Struct("<Q")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def acquire(self, *, wait: bool = False) -> bool:
        """Return True if this process has the lock, until it exits or closes the descriptor."""
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    @property
    def line_no(self) -> int:
        """The number of the last line, over both streams."""
        return int(self._number.unpack(os.pread(self.descriptor, 8, 0) or bytes(8))[0])

    @line_no.setter
    def line_no(self, value: int) -> None:
        os.pwrite(self.descriptor, self._number.pack(value), 0)

    def leave_begun(self, begun: dict[int, bytes]) -> None:
        """Hand over the begin of lines whose end was not read yet."""
        text = json.dumps({stream: data[:_BEGUN_BYTES_MAX].decode("latin-1") for stream, data in begun.items()})
        os.pwrite(self.descriptor, text.encode(), 8)

    def take_begun(self) -> dict[int, bytes]:
        """Return what was handed over last, by stream, and clear it."""
        text = os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 8)
        os.ftruncate(self.descriptor, 8)
        return {int(stream): data.encode("latin-1") for stream, data in json.loads(text or b"{}").items()}


def is_filling(fds: StreamFds) -> bool:
    """Return True if so many bytes wait that the writer may soon block. Raises nothing."""
    try:
        # A quarter of a pipe: short writes leave pages of it half empty. A terminal reports 4,095 bytes at most.
        return bytes_available(fds.source) > fds.capacity_bytes // (2 if fds.name else 4)
    except OSError:
        return False  # the terminal is gone


def bytes_available(descriptor: int) -> int:
    """Return how many bytes can be read. Raises OSError."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])


def _has_room(target: int, wait_ms: int) -> bool:
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    return bool(poll.poll(wait_ms))
