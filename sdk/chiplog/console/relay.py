"""Relay bytes unchanged from a pipe that a process writes to, to the process's original descriptor, and copy them.

The relaying process may be killed at any moment. So it does not read from the pipe: tee(2) copies the pipe's content,
and splice(2) moves it in the kernel. What was not moved stays in the pipe for the next process. For a terminal, the
kernel first moves the pseudo-terminal's output into such a pipe.

    stdout ──► pipe ───── splice ──► descriptor before         stdout ──► pty ── splice ──► pipe, as on the left
                  └─ tee ──► copy ──► lines                    isatty() is true, its size follows the terminal's
"""

import errno
import fcntl
import os
import select
import stat
import struct
import termios
import time
from collections.abc import Iterator
from typing import Any

from chiplog.console.shared_counters import SharedCounters
from chiplog.console.stream_fds import StreamFds

CHUNK_BYTES = 65_536  # capacity of a pipe of the default size: the copy's
_STEPS_MAX = 64  # chunks in one relay_all(): four times the capacity of the largest pipe
_SPLICE_F_NONBLOCK = 2
_GONE = (errno.EPIPE, errno.EIO)  # no reader is left, and none will come back
_TERMINAL_BYTES = 4096  # N_TTY_BUF_SIZE: a pseudo-terminal holds at least this
_WAIT_MS = 1_000  # one wait for a target that is full; then the write is retried
_ROOM_LOOKS = 20  # checks of a full target, a millisecond apart; then the next tick tries again
_TERMINAL_CROWDED_BYTES = 2_048  # of the 4,095 that a pseudo-terminal reports at most, however much more waits


class SpliceRelay:
    """Move what a process writes to its original target, in order, and return a copy of it."""

    def __init__(self, ends: StreamFds, tally: SharedCounters) -> None:
        self.ends = ends
        self.has_ended = False  # all writers have closed, and everything was moved
        self.reader_closed = False  # the target has no reader
        self.write_error: OSError | None = None  # why the last write failed; a later one may succeed
        self._tally = tally
        tally.count_moving(ends.stream)  # of a process that was killed while it had the lock
        import ctypes  # imported late: a rank rarely moves bytes itself; os has no tee()

        self._tee: Any = ctypes.CDLL(None, use_errno=True).tee
        self._tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)
        self._tee.restype = ctypes.c_ssize_t
        self._errno = ctypes.get_errno
        self._copy = os.pipe2(os.O_CLOEXEC)
        self._has_ended = False
        self._can_tee = self._can_splice = self._can_feed = True

    @property
    def capacity_bytes(self) -> int:
        """How much the process can write before it blocks on the relay."""
        if self.ends.master >= 0:
            return _TERMINAL_BYTES
        try:
            return fcntl.fcntl(self.ends.source, fcntl.F_GETPIPE_SZ)
        except OSError:  # not a pipe
            return 0

    def relay(self) -> bytes:
        """Move the available bytes, at most CHUNK_BYTES, and return them; b"" if there are none."""
        if self.ends.master >= 0:
            self._pump_pty()
        n_bytes = self._peek() if self._can_tee else -1  # safeguard: killed-helper-leaves-bytes
        if n_bytes < 0:
            return self._step_by_reading()
        if n_bytes == 0:
            return b""
        n_moved = self._splice(n_bytes)
        data = read_all(self._copy[0], n_bytes)
        self._copy_rest(data[n_moved:])
        return data

    def relay_all(self) -> Iterator[bytes]:
        """Yield the available bytes, chunk by chunk. Ends even if a process keeps writing."""
        for _ in range(_STEPS_MAX):
            data = self.relay()
            if not data:
                return
            yield data

    def close(self) -> None:
        """Close everything, the target too: its reader waits for the end."""
        self.close_copy()
        for descriptor in self.ends.fds:
            os.close(descriptor)

    def close_copy(self) -> None:
        """Close the copy's pipe."""
        for descriptor in self._copy:
            os.close(descriptor)

    def _pump_pty(self) -> None:
        """Move what came out of the pseudo-terminal into the pipe."""
        try:
            if self._can_feed:
                n_bytes = os.splice(self.ends.master, self.ends.feed, CHUNK_BYTES, flags=_SPLICE_F_NONBLOCK)
                self._has_ended = n_bytes == 0
                return
            room = CHUNK_BYTES - bytes_available(self.ends.source)
            if room > 0:
                os.write(self.ends.feed, os.read(self.ends.master, room))
        except BlockingIOError:
            pass  # no bytes, or no room
        except OSError as error:
            if error.errno == errno.EINVAL and self._can_feed:
                self._can_feed = False  # this kernel cannot splice from terminals
                self._pump_pty()
            else:
                self._has_ended = True  # EIO: all descriptors of the terminal are closed

    def _peek(self) -> int:
        """Copy the pipe's content; return its size in bytes, -1 if this system cannot."""
        n_bytes = int(self._tee(self.ends.source, self._copy[1], CHUNK_BYTES, _SPLICE_F_NONBLOCK))
        if n_bytes > 0:
            return n_bytes
        if n_bytes == 0:
            self.has_ended = True
            return 0
        if (number := self._errno()) in (errno.EAGAIN, errno.EINTR):
            self.has_ended = self._has_ended
            return 0
        self._can_tee = number not in (errno.ENOSYS, errno.EINVAL, errno.EPERM)
        return -1

    def _step_by_reading(self) -> bytes:
        if not is_readable(self.ends.source):
            self.has_ended = self._has_ended
            return b""
        data = os.read(self.ends.source, CHUNK_BYTES)
        self.has_ended = not data
        self._write(data)
        self._tally.note_passed(self.ends.stream, len(data))
        return data

    def _splice(self, n_bytes: int) -> int:
        """Move bytes to the target in the kernel; return how many were moved before an error."""
        n_moved = 0
        self._tally.is_waiting = True
        try:
            while n_moved < n_bytes and self._can_splice and not self.reader_closed:
                self._tally.note_moving(self.ends.stream, n_bytes - n_moved)
                try:
                    n_more = os.splice(self.ends.source, self.ends.target, n_bytes - n_moved)
                    self._tally.note_passed(self.ends.stream, n_more)
                    n_moved += n_more
                    self.write_error = None
                except BlockingIOError:
                    self._wait()
                except OSError as error:
                    if error.errno == errno.EINVAL:  # opened with O_APPEND, or a kind that splice does not support
                        self._can_splice = False
                    else:
                        self._note(error)
                        break
        finally:
            self._tally.is_waiting = False
            self._tally.note_moving(self.ends.stream, 0)
        return n_moved

    def _copy_rest(self, data: bytes) -> None:
        """Write what the kernel did not move, then remove it from the pipe.

        A kill between the two steps shows it twice, and loses nothing.
        """
        if data:
            self._write(data)
            self._tally.note_moving(self.ends.stream, len(data))
            read_all(self.ends.source, len(data))
            self._tally.note_passed(self.ends.stream, len(data))
            self._tally.note_moving(self.ends.stream, 0)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        self._tally.is_waiting = True
        try:
            while view and not self.reader_closed:
                try:
                    view = view[os.write(self.ends.target, view) :]
                    self.write_error = None
                except BlockingIOError:
                    self._wait()
                except OSError as error:
                    self._note(error)
                    return  # a full disk: the output would be lost without capture too
        finally:
            self._tally.is_waiting = False

    def _note(self, error: OSError) -> None:
        if error.errno in _GONE:
            self.reader_closed = True
        else:
            self.write_error = error

    def _wait(self) -> None:
        """Wait until the target, a non-blocking pipe, takes more."""
        poll = select.poll()
        poll.register(self.ends.target, select.POLLOUT)
        poll.poll(_WAIT_MS)


class _LineRelay(SpliceRelay):
    """Leave an unterminated line in the pipe, unless it fills the pipe or comes from a terminal."""

    def relay(self) -> bytes:
        """Move the available lines, at most CHUNK_BYTES, and return them. Does not block on a target."""
        if not self._has_room():
            return b""
        n_bytes = self._peek() if self._can_tee and self.ends.master < 0 else -1
        if n_bytes < 0:
            return super().relay()
        copy = read_all(self._copy[0], n_bytes)
        data = copy[: copy.rfind(b"\n") + 1] or (copy if is_filling(self.ends) else b"")
        n_moved = self._splice(len(data))
        self._copy_rest(data[n_moved:])
        return data

    def _has_room(self) -> bool:
        for _ in range(_ROOM_LOOKS):
            if _takes_chunk(self.ends.target):
                return True
            time.sleep(0.001)
        return False


def drain_lines(ends: StreamFds, tally: SharedCounters) -> bytes:
    """Relay the available lines, and return them. The caller must hold the lock of the counters."""
    if not is_readable(ends.poll_fd):
        return b""
    passage = _LineRelay(ends, tally)
    try:
        return b"".join(passage.relay_all())
    finally:
        passage.close_copy()


def is_filling(ends: StreamFds) -> bool:
    """Return True if so many bytes wait that the writer may soon block. Raises nothing."""
    try:
        if ends.master >= 0:
            return bytes_available(ends.master) > _TERMINAL_CROWDED_BYTES
        # A quarter: short writes leave pages of it half empty.
        return bytes_available(ends.source) > fcntl.fcntl(ends.source, fcntl.F_GETPIPE_SZ) // 4
    except OSError:
        return False  # the terminal is gone


def _takes_chunk(target: int) -> bool:
    """Return True if a chunk fits. A pipe that is not empty may have less room than its free bytes suggest."""
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    states = dict(poll.poll(0)).get(target, 0)
    if states & select.POLLERR or not stat.S_ISFIFO(os.fstat(target).st_mode):
        return bool(states)
    return bytes_available(target) == 0 and fcntl.fcntl(target, fcntl.F_GETPIPE_SZ) >= CHUNK_BYTES


def is_readable(descriptor: int) -> bool:
    """Return True if there are bytes to read, or if the end is reached."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def bytes_available(descriptor: int) -> int:
    """Return how many bytes can be read. Raises OSError."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])


def read_all(descriptor: int, n_bytes: int) -> bytes:
    """Read exactly `n_bytes`, which must be available."""
    pieces = []
    while n_bytes > 0:
        piece = os.read(descriptor, n_bytes)
        if not piece:
            break
        pieces.append(piece)
        n_bytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
