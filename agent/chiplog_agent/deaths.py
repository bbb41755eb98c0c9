"""When ranks died, and by what status: a pidfd for each process, where its journal's lock tells only that it happened.

The PID is the one that the kernel names as the holder of a journal's lock, so that it is ours in any PID namespace. The
status comes from the pidfd once the process was reaped (Linux 6.15: PIDFD_GET_INFO of linux/pidfd.h), before that from
field 52 of /proc/PID/stat of the zombie (proc_pid_stat(5)). Nobody but the parent could wait for it.

A process on its way out releases its locks first, and has no status before its last file is closed, a GPU's perhaps
seconds later.
"""

import fcntl
import os
import select
import struct
from dataclasses import dataclass, field

from chiplog_schemas.machine import stat_fields

# struct pidfd_info: mask, cgroupid (u64), pid, tgid, ppid and eight IDs (u32), exit_code (s32); its first version.
_PIDFD_INFO = struct.Struct("<QQ11Ii")
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
_ENDED_MAX = 256  # looked at in one go
_STATE, _FLAGS, _EXIT_CODE = 0, 6, 49  # of stat_fields(): state, flags, exit_code
_PF_EXITING = 0x4  # among the flags: of the kernel's include/linux/sched.h


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process. ts_us: when it was seen. status: as of waitpid(2), None when nobody could tell."""

    ts_us: int
    status: int | None = None
    source: str = ""  # of the status

    @property
    def exit_code(self) -> int | None:
        """What it ended with by itself."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None

    @property
    def exit_signal(self) -> int | None:
        """The signal that ended it."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None


@dataclass(slots=True)
class _Process:
    """A process that is watched, for as long as one of its producers is."""

    pid: int
    producers: set[bytes] = field(default_factory=set)


class Deaths:
    """The processes of this node's producers, and how each ended. One descriptor for each process, and one for all."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}  # by pidfd
        self._newest: dict[int, int] = {}  # PID -> pidfd of the process that had it last
        self._descriptors: dict[bytes, int] = {}  # producer -> pidfd
        self._deaths: dict[bytes, Death] = {}
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """Return a descriptor that is readable once a process has ended."""
        return self._epoll.fileno()

    def watch(self, producer: bytes, pid: int) -> None:
        """Watch a producer's process until `forget`. pid: as this process sees it; of nobody when not positive."""
        if not 0 < pid < 1 << 31 or producer in self._descriptors:
            return
        descriptor = self._newest.get(pid)
        if descriptor is None or _has_ended(descriptor):  # a PID may be given out again before anybody looks
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                return  # gone already, no descriptor left, or an older kernel: the lock will tell
            self._processes[descriptor] = _Process(pid)
            self._newest[pid] = descriptor
            self._epoll.register(descriptor, select.EPOLLIN)
        self._processes[descriptor].producers.add(producer)
        self._descriptors[producer] = descriptor

    def look(self, now_us: int) -> bool:
        """Note who ended since the last look; tell whether somebody did."""
        if not self._processes:
            return False
        ended = self._epoll.poll(0, _ENDED_MAX)
        for descriptor, _ in ended:
            process = self._processes[descriptor]
            death = Death(now_us, *_status(descriptor, process.pid))
            for producer in process.producers:
                self._deaths[producer] = death
                del self._descriptors[producer]
            self._close(descriptor)
        return bool(ended)

    def is_due(self, producer: bytes) -> bool:
        """Tell whether a producer's process is ending, or has ended, and the next looks will note how."""
        descriptor = self._descriptors.get(producer)
        if descriptor is None:
            return False  # noted, or not watched
        fields = stat_fields(self._processes[descriptor].pid)
        is_exiting = len(fields) > _FLAGS and int(fields[_FLAGS]) & _PF_EXITING
        return bool(is_exiting) or _has_ended(descriptor)  # in this order: the PID is its own until it has ended

    def of(self, producer: bytes) -> Death | None:
        """Return how a producer's process ended; None when nobody saw it."""
        return self._deaths.get(producer)

    def forget(self, producer: bytes) -> None:
        """Drop what is known of a producer that is delivered."""
        self._deaths.pop(producer, None)
        descriptor = self._descriptors.pop(producer, None)
        if descriptor is not None:
            process = self._processes[descriptor]
            process.producers.discard(producer)
            if not process.producers:
                self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        pid = self._processes.pop(descriptor).pid
        if self._newest[pid] == descriptor:
            del self._newest[pid]
        os.close(descriptor)


def _has_ended(descriptor: int) -> bool:
    one = select.poll()
    one.register(descriptor, select.POLLIN)
    return bool(one.poll(0))


def _status(descriptor: int, pid: int) -> tuple[int | None, str]:
    """Return (status, source) of a process that has ended. It may be reaped between two of these looks."""
    found = _status_by_pidfd(descriptor)
    if found is None and (zombie := _status_of_zombie(pid)) is not None:
        return zombie, "/proc/PID/stat"
    if found is None:
        found = _status_by_pidfd(descriptor)
    return found, "" if found is None else "pidfd"


def _status_by_pidfd(descriptor: int) -> int | None:
    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, _PIDFD_INFO_EXIT, *[0] * 13)
    try:
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
    except OSError:
        return None  # an older kernel knows no such call, or no such process any more
    mask, *_, status = _PIDFD_INFO.unpack(info)
    return status if mask & _PIDFD_INFO_EXIT else None


def _status_of_zombie(pid: int) -> int | None:
    fields = stat_fields(pid)
    # X: its parent waits for it in this moment, and the pidfd does not tell yet.
    return int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE and fields[_STATE] in ("Z", "X") else None
