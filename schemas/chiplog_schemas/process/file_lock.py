"""The lock that shows whether a process lives: an fcntl record lock, which ends with its process and is not inherited.

Closing any descriptor of the file in the process that holds the lock releases it. So there is one Lock object per file.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import signal
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from chiplog_schemas.limits import LEAVER_WAIT_S

EMBEDDED = "embedded"  # the lock's note of a daemon that a training or a reader started
_POLL_INTERVAL_S = 0.1
_TOUCHED_MAX = 10_000  # files per call, at 10 µs each, in a daemon's loop
_PID_MAX = (1 << 31) - 1  # the kernel's type; a larger number in a file is not a PID
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, PID


class LockHeldError(OSError):
    """Another process holds the lock. `pid` is its PID, or 0 when it could not be read."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is held by process {pid or '(unknown)'}")
        self.pid = pid


# Files that this process has locked, with its PID, which a forked child does not have, and the descriptor. Closing any
# descriptor of such a file releases the lock, so the functions that only read must not open it.
_held: dict[tuple[int, int], tuple[int, int]] = {}


class Lock:
    """An exclusive lock on a file, held from construction to `release` or to the end of the process.

    The file names its holder: the PID in the first line, the holder's `note` in the second.
    Raises LockHeldError when another process holds it, OSError when the file cannot be opened.
    """

    def __init__(self, path: Path, *, create: bool = True, note: str = "") -> None:
        self.path = path
        self._note = note
        self._owner = os.getpid()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        self._file = id_of(os.fstat(self._descriptor))
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(self._descriptor)
            os.close(self._descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise  # a file system without locks: no process holds the lock, and none can
            raise LockHeldError(path, holder) from error
        self._directory = file_id(path.parent)
        self._write_holder(self._descriptor)
        _held[self._file] = (self._owner, self._descriptor)

    def _write_holder(self, descriptor: int) -> None:
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._owner}\n{self._note}\n".encode(), 0)
        except OSError:
            pass  # a full disk: the lock counts, its PID is only for people

    @property
    def is_there(self) -> bool:
        """Return True if the file still has its name.

        Without the name, another process can create and lock a new file.
        """
        return self.is_ours and file_id(self.path) == self._file  # safeguard: closed-lock-acquired-again

    @property
    def is_directory_there(self) -> bool:
        """Return True if the directory is still the one in which the lock was taken."""
        return file_id(self.path.parent) == self._directory

    def move_to(self, path: Path) -> None:
        """Record the file's new name, in a directory that was renamed."""
        self.path, self._directory = path, file_id(path.parent)

    def renew(self) -> None:
        """Replace a removed file, and hold the lock on the new one. The lock is never free in between.

        If other code of this process closed the descriptor and so released the lock, take it again.

        Raises LockHeldError when another process has created and locked one, OSError when the disk refuses.
        """
        is_ours = self.is_ours  # before the number may be reused
        try:
            taken = Lock(self.path, create=False, note=self._note)
        except FileNotFoundError:
            making = self.path.with_name(f".{self.path.name}-{self._owner}")
            making.unlink(missing_ok=True)
            taken = Lock(making, note=self._note)
            try:
                os.link(making, self.path)  # locked before it has its name; fails if the name exists
            except BaseException:
                taken.release()
                raise
            finally:
                making.unlink(missing_ok=True)
        if is_ours:
            os.close(self._descriptor)  # this descriptor belongs to another file: the new lock stays
        if taken._file != self._file:
            _held.pop(self._file, None)
        self._adopt(taken)
        self._directory = file_id(self.path.parent)

    @property
    def is_ours(self) -> bool:
        """Return True if no other code of this process has closed the descriptor and with it released the lock."""
        try:
            return self._descriptor >= 0 and id_of(os.fstat(self._descriptor)) == self._file
        except OSError:
            return False

    def _adopt(self, taken: "Lock") -> None:
        self._descriptor, taken._descriptor = taken._descriptor, -1
        self._file = taken._file

    def touch(self) -> None:
        """Update the file's times, for cleaners that remove files not used for days. Raises OSError."""
        os.utime(self._descriptor)

    def release(self) -> None:
        """Release the lock. In a forked child this closes the child's copy and leaves the parent's lock alone."""
        descriptor, is_ours, self._descriptor = self._descriptor, self.is_ours, -1
        if is_ours:  # else the number belongs to another file
            os.close(descriptor)
        if _held.get(self._file) == (os.getpid(), descriptor):
            del _held[self._file]


def file_id(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from a later one of the same name; None when the file does not exist."""
    try:
        return id_of(os.stat(path))
    except OSError:
        return None


def id_of(about: os.stat_result) -> tuple[int, int]:
    """Return the same for a result of stat(2)."""
    return about.st_dev, about.st_ino


def touch(files: Iterable[Path], directories: Iterable[Path] = ()) -> None:
    """Set the times of files, and of the files in directories, to now.

    Files that are absent or another user's are skipped.
    """
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
    """Renew a daemon's lock whose file was removed. Return why the daemon must end, '' otherwise.

    If the directory is gone, removed or renamed, so is the daemon's data: it could not store anything new.
    """
    if lock.is_there:
        return ""
    if not lock.is_directory_there:  # safeguard: daemon-ends-without-directory
        return f"{lock.path.parent} was removed or renamed"
    try:
        lock.renew()  # safeguard: removed-lock-made-again
    except LockHeldError as error:
        return f"{error}, since its file was removed"
    except OSError:
        pass  # the disk refuses: the next check tries again
    return ""


def read_pid(descriptor: int) -> int:
    """Return the PID that the holder wrote into its lock file; 0 without one."""
    text = os.pread(descriptor, 32, 0).partition(b"\n")[0].strip()
    return int(text) if text.isdigit() and int(text) <= _PID_MAX else 0


def lock_note(path: Path) -> str:
    """Return the note of a lock's last holder; '' without one."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[2].strip()
    except OSError:
        return ""


def take_lock(path: Path, *, patient_s: float = 0.0, note: str = "") -> Lock:
    """Take a lock, waiting up to `patient_s` for a holder that may be stopping. Raises LockHeldError, OSError."""
    deadline = time.monotonic() + patient_s
    while True:
        try:
            return Lock(path, note=note)
        except LockHeldError:
            if time.monotonic() >= deadline:
                raise  # safeguard: stopped-daemon-keeps-lock
            time.sleep(_POLL_INTERVAL_S)


def take_daemon_lock(path: Path, *, embedded: bool, replace_wait_s: float) -> Lock:
    """Take the lock of a daemon's directory. A daemon that an operator starts replaces an embedded one.

    embedded: this daemon was started by a training or a reader; it waits for one that is shutting down.
    replace_wait_s: how long an embedded daemon may take to shut down. Raises LockHeldError, OSError.
    """
    if embedded:
        return take_lock(path, patient_s=LEAVER_WAIT_S, note=EMBEDDED)  # safeguard: successor-waits-for-leaver
    return take_lock(path, patient_s=replace_wait_s if _ask_embedded_to_leave(path) else 0.0)


def _ask_embedded_to_leave(path: Path) -> bool:
    """Ask an embedded daemon to shut down. Return True if one holds the lock of this path."""
    pid = kernel_lock_holder_pid(path) if lock_note(path) == EMBEDDED else 0
    if pid > 0:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)  # safeguard: embedded-daemon-leaves-for-configured
    return pid > 0


def kernel_lock_holder_pid(path: Path) -> int:
    """Return the PID of the process that holds a lock, as the kernel names it in this process's PID namespace.

    0 when no process holds it, when the file does not exist, or when the holder is not visible from here. Like
    `lock_holder_pid` it only reads. It ignores the content of the file.
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
    if file is None or file not in _held:
        return False
    pid, descriptor = _held[file]
    try:  # other code may have closed the descriptor, and a new file have the removed file's inode
        return pid == os.getpid() and id_of(os.fstat(descriptor)) == file  # safeguard: closed-lock-is-not-held
    except OSError:
        return False


def _locker(descriptor: int) -> tuple[bool, int]:
    """Return whether another process holds the lock, and its PID from the kernel. Raises OSError."""
    asked = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    kind, _, _, _, pid = _FLOCK.unpack(asked)
    return (True, int(pid)) if kind != fcntl.F_UNLCK else (False, 0)


def _holder(descriptor: int) -> int:
    """Return the PID of the process that holds the lock of an open file; 0 when it is unknown.

    The kernel knows it from the first moment. The file still has the PID of an earlier holder, or none, until the new
    one has written its own. The kernel does not name a holder outside of this PID namespace, the file does.
    """
    try:
        pid = _locker(descriptor)[1]  # negative: a process of another host
    except OSError:
        pid = 0
    return pid if pid > 0 else read_pid(descriptor)  # safeguard: kernel-names-lock-holder


def lock_holder_pid(path: Path) -> int:
    """Return the PID of the process that holds a lock; 0 when no process does or the file does not exist.

    It only reads and never takes the lock, so it cannot make a daemon that starts at this moment fail.
    """
    if _is_held_here(path):
        return os.getpid()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        is_held, _ = _locker(descriptor)
        return (_holder(descriptor) or -1) if is_held else 0
    except OSError:
        return 0
    finally:
        os.close(descriptor)
