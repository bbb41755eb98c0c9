"""Whether a process was killed because memory ran out, from the counters of its control group and the kernel's log.

The log names the process, but only root may read it, and its PIDs are valid only outside of containers. The counters
name no process: one more kill in a group since the last check is attributed to the process being checked. Sources:
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; Documentation/ABI/testing/dev-kmsg.
"""

import os
import re
from dataclasses import dataclass, field

from chiplog_agent.stats.rank.cgroup import find_groups

_COUNTS = {2: "memory.events", 1: "memory.oom_control"}
_KILLS = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_KERNEL_LOG = "/dev/kmsg"
_KERNEL_RECORD_BYTES_MAX = 8_192  # one read is one record
_KERNEL_RECORDS_MAX = 20_000  # read at a time: a log that grows faster than it is read contains other messages
_NAMES_MAX = 1_024  # killed processes that are remembered until their exit is resolved
_KILLED = re.compile(r"(?P<what>Out of memory|Memory cgroup out of memory): Killed process (?P<pid>\d+) (?P<rest>.*)")
_SIZES = re.compile(r"(anon-rss|file-rss|shmem-rss):(\d+)kB")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_fs.h


@dataclass(frozen=True, slots=True)
class OomKill:
    """A process that the kernel killed because memory ran out."""

    source: str  # "kernel log" or "cgroup"
    text: str  # for people
    group: str = ""


@dataclass(slots=True)
class _Group:
    """A control group of memory whose kills are counted, for as long as one of its producers is watched."""

    file: str
    kills: int
    producers: set[bytes] = field(default_factory=set)


class OomWatcher:
    """The kernel's kills among the processes of producers. Queried once for each process that SIGKILL ended."""

    def __init__(self, *, proc: str = "/proc", kernel_log: str = _KERNEL_LOG) -> None:
        self._proc = proc
        self._groups: dict[str, _Group] = {}  # by path
        self._group_of: dict[bytes, str] = {}
        self._log = _KernelLog(kernel_log)

    def watch(self, producer: bytes, pid: int) -> None:
        """Record the group of a producer's process, and its number of kills. Costs some reads of small files."""
        if producer in self._group_of:
            return
        self._log.line_of(pid)  # it is alive, so the log's earlier lines are about another process with this PID
        try:
            version, folders = find_groups(pid, self._proc)
            folder = folders[0]
            file = f"{folder}/{_COUNTS[version]}"
            group = self._groups.get(folder)
            if group is None:
                group = self._groups[folder] = _Group(file, _kills_in(file))
        except (OSError, LookupError, ValueError):
            return  # no such group, none with memory limits, or none that is visible from here
        group.producers.add(producer)
        self._group_of[producer] = folder

    def kill_of(self, producer: bytes, pid: int) -> OomKill | None:
        """Return the out-of-memory kill of a producer's process, which SIGKILL ended; None if there was none."""
        line = self._log.line_of(pid)
        group = self._groups.get(self._group_of.get(producer, ""))
        is_counted = False
        if group is not None:
            try:
                is_counted = _kills_in(group.file) > group.kills
            except (OSError, ValueError):
                pass  # the group is gone with its last process
            group.kills += is_counted
        name = self._group_of.get(producer, "")
        if line is not None:
            return OomKill("kernel log", line, name)
        if is_counted:
            return OomKill("cgroup", f"its control group {name} counts one more out-of-memory kill", name)
        return None

    def forget(self, producer: bytes) -> None:
        """Drop the state of a producer."""
        name = self._group_of.pop(producer, None)
        if name is not None:
            group = self._groups[name]
            group.producers.discard(producer)
            if not group.producers:
                del self._groups[name]


def _kills_in(file: str) -> int:
    with open(file, "rb", buffering=0) as counts:
        found = _KILLS.search(counts.read())
    if found is None:
        raise ValueError(f"{file} has no oom_kill")
    return int(found[1])


class _KernelLog:
    """The kernel's log from now on, if this process may read it and its PIDs are those of this namespace."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._lines: dict[int, str] = {}
        try:
            if os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            pass  # no permission, or no such device in this container

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def line_of(self, pid: int) -> str | None:
        """Return the log's line about the out-of-memory kill of a process; the last one for a PID."""
        self._read_on()
        return self._lines.pop(pid, None)

    def _read_on(self) -> None:
        if self._descriptor < 0:
            return
        for _ in range(_KERNEL_RECORDS_MAX):
            try:
                record = os.read(self._descriptor, _KERNEL_RECORD_BYTES_MAX)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # records were overwritten before they were read: the next read continues after them
            except OSError:
                return
            text = record.partition(b";")[2].partition(b"\n")[0].decode(errors="replace")
            if (found := _KILLED.search(text)) is not None:
                sizes = ", ".join(f"{name} {int(kib) >> 10} MiB" for name, kib in _SIZES.findall(found["rest"]))
                self._lines[int(found["pid"])] = (
                    f"{found['what']}: killed by the kernel{f' ({sizes})' if sizes else ''}"
                )
                while len(self._lines) > _NAMES_MAX:
                    del self._lines[next(iter(self._lines))]
