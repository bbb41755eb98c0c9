"""The lock that tells whether a process lives: an fcntl record lock, which ends with its process and no child inherits.

Closing any descriptor of the file in the process that holds the lock would release it: one Lock object per file.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path

_LOOK_AGAIN_S = 0.1
_TOUCHED_MAX = 10_000  # files at once: 10 µs each, in a daemon's loop
_PID_MAX = (1 << 31) - 1  # of the kernel's type; what else stands in a file is nobody's PID
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, PID


class LockHeldError(OSError):
    """Another process holds the lock; `pid` is its number, or 0 when it could not be read."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is held by process {pid or '(unknown)'}")
        self.pid = pid


# Files that this process has locked, and its PID, which a forked child does not have. Closing any descriptor of such a
# file would release the lock, so the functions that only look must not open it.
_held: dict[tuple[int, int], int] = {}


class Lock:
    """An exclusive lock on a file, held from construction to `release` or to the end of the process.

    The file says who holds it: the PID in its first line, the holder's `note` in the second.
    Raises LockHeldError when another process holds it, OSError when the file cannot be opened.
    """

    def __init__(self, path: Path, *, create: bool = True, note: str = "") -> None:
        self.path = path
        self._note = note
        self._owner = os.getpid()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        self._file = id_of(os.fstat(self._descriptor))
        self._directory = file_id(path.parent)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = read_pid(self._descriptor)
            os.close(self._descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise  # a file system without locks: nobody holds it, and nobody can
            raise LockHeldError(path, holder) from error
        self._write_holder(self._descriptor)
        _held[self._file] = self._owner

    def _write_holder(self, descriptor: int) -> None:
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._owner}\n{self._note}\n".encode(), 0)
        except OSError:
            pass  # a full disk: the lock is what counts, the PID in it is for people

    @property
    def is_there(self) -> bool:
        """Return True if the file still has its name: a lock without one keeps no process from taking another."""
        return self.is_ours and file_id(self.path) == self._file

    @property
    def is_directory_there(self) -> bool:
        """Return True if the directory is the one that it was when the lock was taken."""
        return file_id(self.path.parent) == self._directory

    def move_to(self, path: Path) -> None:
        """Note that the file has this name by now, in a directory that was renamed."""
        self.path, self._directory = path, file_id(path.parent)

    def renew(self) -> None:
        """Make a file in place of one that was removed, and hold the lock on it. The lock is never free in between.

        Where other code of this process has closed the descriptor, and so released the lock, it is taken again.

        Raises LockHeldError when another process has made and locked one, OSError when the disk refuses.
        """
        is_ours = self.is_ours  # before the number may be given out again
        try:
            taken = Lock(self.path, create=False, note=self._note)
        except FileNotFoundError:
            making = self.path.with_name(f".{self.path.name}-{self._owner}")
            making.unlink(missing_ok=True)
            taken = Lock(making, note=self._note)
            try:
                os.link(making, self.path)  # already locked: nobody who opens it finds it free. Not over another's.
            except BaseException:
                taken.release()
                raise
            finally:
                making.unlink(missing_ok=True)
        if is_ours:
            os.close(self._descriptor)  # of another file: the new lock stays
        _held.pop(self._file, None)
        self._adopt(taken)
        self._directory = file_id(self.path.parent)

    @property
    def is_ours(self) -> bool:
        """Return True if no other code of this process has closed the descriptor, and with it released the lock."""
        try:
            return self._descriptor >= 0 and id_of(os.fstat(self._descriptor)) == self._file
        except OSError:
            return False

    def _adopt(self, taken: "Lock") -> None:
        self._descriptor, taken._descriptor = taken._descriptor, -1
        self._file = taken._file

    def touch(self) -> None:
        """Keep the file young for cleaners that remove what was not used for days. Raises OSError."""
        os.utime(self._descriptor)

    def release(self) -> None:
        """Give the lock up. In a forked child this closes the child's copy and leaves the parent's lock alone."""
        if self.is_ours:  # else the number is another file's by now
            os.close(self._descriptor)
            if self._owner == os.getpid():
                _held.pop(self._file, None)
        self._descriptor = -1


def file_id(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one that has its name later; None when there is none."""
    try:
        return id_of(os.stat(path))
    except OSError:
        return None


def id_of(about: os.stat_result) -> tuple[int, int]:
    """Return the same of what stat(2) says."""
    return about.st_dev, about.st_ino


def touch(files: Iterable[Path], directories: Iterable[Path] = ()) -> None:
    """Set the times of files, and of the files in directories, to now, as far as they are there and ours."""
    found = itertools.chain(files, *map(_files_in, directories))
    for path in itertools.islice(found, _TOUCHED_MAX):
        with contextlib.suppress(OSError):
            os.utime(path)


def _files_in(directory: Path) -> list[Path]:
    try:
        return [directory / name for name in os.listdir(directory)]
    except OSError:
        return []


def keep_lock(lock: Lock) -> str:
    """Renew a daemon's lock whose file was removed. Return why the daemon must end; '' when it need not.

    Where its directory is gone, removed or renamed, its data is: what it would still take it could not keep.
    """
    if lock.is_there:
        return ""
    if not lock.is_directory_there:
        return f"{lock.path.parent} was removed or renamed"
    try:
        lock.renew()
    except LockHeldError as error:
        return f"{error}, since its file was removed"
    except OSError:
        pass  # the disk refuses: at the next look
    return ""


def read_pid(descriptor: int) -> int:
    """Return the PID that the holder wrote into its lock file; 0 when there is none."""
    text = os.pread(descriptor, 32, 0).partition(b"\n")[0].strip()
    return int(text) if text.isdigit() and int(text) <= _PID_MAX else 0


def lock_note(path: Path) -> str:
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


def kernel_lock_holder_pid(path: Path) -> int:
    """Return the PID of the process that holds a lock, as the kernel names it in this process's own PID namespace.

    0 when nobody does, when there is no such file, or when the holder cannot be seen from here. Only looks, as
    `holder_of` does; what stands in the file is not asked.
    """
    if _is_held_here(path):
        return os.getpid()
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


def _is_held_here(path: Path) -> bool:
    file = file_id(path)
    return file is not None and _held.get(file) == os.getpid()


def _locker(descriptor: int) -> tuple[bool, int]:
    """Return whether another process holds the lock, and its PID by the kernel. Raises OSError."""
    asked = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    kind, _, _, _, pid = _FLOCK.unpack(asked)
    return (True, int(pid)) if kind != fcntl.F_UNLCK else (False, 0)


def lock_holder_pid(path: Path) -> int:
    """Return the PID of the process that holds a lock; 0 when nobody does or there is no such file.

    Only looks: it never takes the lock, so that a daemon that starts at this moment is not turned away.
    """
    if _is_held_here(path):
        return os.getpid()
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
