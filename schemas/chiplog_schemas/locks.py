"""The lock that tells whether a process lives: an fcntl record lock, which ends with its process and no child inherits.

Closing any descriptor of the file in the process that holds the lock would release it: one Lock object per file.
"""

import errno
import fcntl
import os
import struct
import time
from pathlib import Path

_LOOK_AGAIN_S = 0.1
_PID_MAX = (1 << 31) - 1  # of the kernel's type; what else stands in a file is nobody's PID
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, PID


class LockHeldError(OSError):
    """Another process holds the lock; `pid` is its number, or 0 when it could not be read."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is held by process {pid or '(unknown)'}")
        self.pid = pid


class Lock:
    """An exclusive lock on a file, held from construction to `release` or to the end of the process.

    The file says who holds it: the PID in its first line, the holder's `note` in the second.
    Raises LockHeldError when another process holds it, OSError when the file cannot be opened.
    """

    def __init__(self, path: Path, *, create: bool = True, note: str = "") -> None:
        self.path = path
        self._owner = os.getpid()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = read_pid(self._descriptor)
            os.close(self._descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise  # a file system without locks: nobody holds it, and nobody can
            raise LockHeldError(path, holder) from error
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n{note}\n".encode(), 0)
        except OSError:
            pass  # a full disk: the lock is what counts, the PID in it is for people

    def release(self) -> None:
        """Give the lock up. In a forked child this closes the child's copy and leaves the parent's lock alone."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_pid(descriptor: int) -> int:
    """Return the PID that the holder wrote into its lock file; 0 when there is none."""
    text = os.pread(descriptor, 32, 0).partition(b"\n")[0].strip()
    return int(text) if text.isdigit() and int(text) <= _PID_MAX else 0


def note_of(path: Path) -> str:
    """Return what the last holder of a lock noted in its file; '' when there is nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[2].strip()
    except OSError:
        return ""


def take_lock(path: Path, *, patient_s: float = 0.0, note: str = "") -> Lock:
    """Take a lock, waiting up to `patient_s` for a holder that may just be leaving. Raises LockHeldError, OSError."""
    deadline = time.monotonic() + patient_s
    while True:
        try:
            return Lock(path, note=note)
        except LockHeldError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_AGAIN_S)


def locker_of(path: Path) -> int:
    """Return the PID of the process that holds a lock, as the kernel names it in this process's own PID namespace.

    0 when nobody does, when there is no such file, or when the holder cannot be seen from here. Only looks, as
    `holder_of` does; what stands in the file is not asked.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return max(0, _locker(descriptor)[1])
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def _locker(descriptor: int) -> tuple[bool, int]:
    """Return whether another process holds the lock, and its PID by the kernel. Raises OSError."""
    asked = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    kind, _, _, _, pid = _FLOCK.unpack(asked)
    return (True, int(pid)) if kind != fcntl.F_UNLCK else (False, 0)


def holder_of(path: Path) -> int:
    """Return the PID of the process that holds a lock; 0 when nobody does or there is no such file.

    Only looks: it never takes the lock, so that a daemon that starts meanwhile is not turned away. Not for locks that
    this process holds itself: closing the file would release them.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        is_held, pid = _locker(descriptor)
        return (read_pid(descriptor) or pid or -1) if is_held else 0
    except OSError:
        return 0
    finally:
        os.close(descriptor)
