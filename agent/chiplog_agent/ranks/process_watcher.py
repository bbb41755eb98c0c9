"""When ranks ended, and with which status: a pidfd per process, because its journal's lock shows only that it ended.

The PID is the one that the kernel names as the holder of a journal's lock, so it is valid in any PID namespace.
`exit_status.py` of the schemas reads the status.
An exiting process releases its locks first. It has no status until its last file is closed, a GPU's perhaps seconds
later.
"""

import os
import select
from dataclasses import dataclass, field

from chiplog_schemas.process.exit_status import exit_status
from chiplog_schemas.process.procfs import FLAGS, read_proc_stat

_ENDED_MAX = 256  # handled per call
_PF_EXITING = 0x4  # among the flags: of the kernel's include/linux/sched.h


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The end of a process. ts_us: when it was seen. status: as of waitpid(2), None when unknown."""

    ts_us: int
    status: int | None = None
    source: str = ""  # of the status

    @property
    def exit_code(self) -> int | None:
        """The code with which it exited."""
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


class ProcessWatcher:
    """The processes of this node's producers, and how each ended. One descriptor for each process, and one for all."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}  # by pidfd
        self._newest: dict[int, int] = {}  # PID -> pidfd of the process that had it last
        self._descriptors: dict[bytes, int] = {}  # producer -> pidfd
        self._deaths: dict[bytes, ProcessExit] = {}
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """Return a descriptor that is readable once a process has ended."""
        return self._epoll.fileno()

    def watch(self, producer: bytes, pid: int) -> None:
        """Watch a producer's process until `forget`. pid: in this process's namespace; not positive: no process."""
        if not 0 < pid < 1 << 31 or producer in self._descriptors:
            return
        descriptor = self._newest.get(pid)  # safeguard: one-descriptor-per-process
        if descriptor is None or _has_ended(descriptor):  # a PID may have been reused since
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                return  # already gone, no descriptor left, or an older kernel: the lock will show it
            self._processes[descriptor] = _Process(pid)
            self._newest[pid] = descriptor
            self._epoll.register(descriptor, select.EPOLLIN)
        self._processes[descriptor].producers.add(producer)
        self._descriptors[producer] = descriptor

    def wait(self, wait_s: float) -> bool:
        """Wait until a process has ended, at most this long. Return True if one has."""
        return bool(self._epoll.poll(wait_s, 1))

    def poll(self, now_us: int) -> bool:
        """Record the processes that ended since the last call. Return True if any did."""
        if not self._processes:
            return False
        ended = self._epoll.poll(0, _ENDED_MAX)
        for descriptor, _ in ended:
            process = self._processes[descriptor]
            death = ProcessExit(now_us, *exit_status(descriptor, process.pid))
            for producer in process.producers:
                self._deaths[producer] = death
                del self._descriptors[producer]
            self._close(descriptor)
        return bool(ended)

    def is_watched(self, producer: bytes) -> bool:
        """Return True if a producer's process is watched, and its end was not recorded. It costs no system call."""
        return producer in self._descriptors

    def is_due(self, producer: bytes) -> bool:
        """Return True if a producer's process is exiting, or has ended, and a later `look` will record how."""
        descriptor = self._descriptors.get(producer)
        if descriptor is None:
            return False  # recorded, or not watched
        fields = read_proc_stat(self._processes[descriptor].pid)
        is_exiting = len(fields) > FLAGS and int(fields[FLAGS]) & _PF_EXITING
        return bool(is_exiting) or _has_ended(descriptor)  # in this order: the PID is its own until it has ended

    def is_alive(self, producer: bytes) -> bool:
        """Return True if a producer's process is watched and has not ended."""
        descriptor = self._descriptors.get(producer)
        return descriptor is not None and not _has_ended(descriptor)

    def exit_of(self, producer: bytes) -> ProcessExit | None:
        """Return how a producer's process ended; None when this was not observed."""
        return self._deaths.get(producer)

    def forget(self, producer: bytes) -> None:
        """Drop the state of a delivered producer."""
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
