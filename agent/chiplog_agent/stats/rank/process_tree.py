"""Samples of the ranks: CPU, memory, threads and descriptors, summed over the process tree of each.

Children are read from /proc/PID/task/TID/children, memory from /proc/PID/statm, descriptors from /proc/PID/fd,
everything else from /proc/PID/stat: one read each.
"""

import os
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from chiplog_agent.stats.rank.cgroup import Memory, MemoryGroup
from chiplog_agent.stats.rank.kept_files import KeptFiles, read_all
from chiplog_agent.stats.source import Reading, Source
from chiplog_schemas.process.procfs import SESSION, START, own_ticks, resident_of, split_stat

PROCESS_NAMES = (
    "process.cpu.utilization",
    "process.memory.usage",
    "process.threads",
    "process.cpu.time",
    "process.blocked",
    "process.open_file_descriptors",
)
GROUP_NAMES = ("cgroup.memory.usage", "cgroup.memory.limit")
_WALK_INTERVAL_S = 10.0  # between two scans for children of threads other than the first: a rank has 100 threads
_INCIDENTAL_SHARE = 0.1  # a bare context uses about 0.5 GB, a training many times that
_SETTLED_S = 5.0  # a process that ends frees its GPUs one after the other, which is not a change of its GPUs
# Per rank: ten times what DataLoaders and compilers start; a fork bomb must not slow down the sampler.
_TREE_PROCESSES_MAX = 1024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DAEMONS = (b"chiplog_agent", b"chiplog_collector", b"chiplog agent", b"chiplog collector")


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used, with their numbers in proc(5)."""

    is_alive: bool  # 3: False for a zombie, which keeps its times until its parent waits for it
    session: int  # 6
    cpu_ticks: int  # 14 + 15: user and system time of all threads
    children_ticks: int  # 16 + 17: the same of the children that it has waited for, and of their children
    threads: int  # 20
    start_ticks: int  # 22: since boot; with the PID it identifies a process despite reuse
    is_blocked: bool = False  # 3: in a wait that no signal ends, as a rule for a disk or a driver

    @property
    def total_ticks(self) -> int:
        """The CPU time of the process and of the children that it has waited for."""
        return self.cpu_ticks + self.children_ticks


Stats = dict[int, Stat]  # by PID


class _Tree(NamedTuple):
    """The processes of one rank at one time."""

    members: Stats
    apart: Stats  # children that are not part of its work: other ranks, agents and collectors

    def living(self) -> Stats:
        return {pid: stat for pid, stat in self.members.items() if stat.is_alive}


class _Rank:
    """One watched process, its tree, and its CPU time at the last sample."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.start_ticks = 0
        self.walked_at = 0.0
        self.sampled_at = 0.0  # seconds since boot, the clock of start_ticks
        self.tree = _Tree({}, {})
        self.cpu_ticks = 0  # of all that was ever part of the tree, so that it never falls
        self.expected_ticks = 0  # of children that ended, and are not in their parents' times yet
        self.daemons: dict[int, int] = {}  # PID → start_ticks of chiplog's daemons that this rank has started
        self.overfull = False
        self.group: MemoryGroup | None = None
        self.devices: list[str] = []  # the GPUs that it uses, as last reported
        self.seen_devices: list[str] = []  # and as last seen …
        self.devices_since = 0.0  # … since this time, monotonic


class ProcessStats(Source):
    """Reads the process trees of a set of ranks, and their control groups.

    Descriptors are absent where they may not be counted, a group's limit without one below the host's memory. The
    device is `pid:<PID>`. A rank's first sample comes one interval after it is first seen. A vanished rank is
    absent. A tree ends at other watched ranks, and at agents and collectors that a rank has started, which are not its
    work.
    """

    title = "ranks"

    def __init__(self, *, proc: str = "/proc") -> None:
        """Read control groups below `proc`; processes are always those of /proc."""
        self.lines: list[str] = []  # reasons, reported once each; the caller clears the list
        self._ranks: dict[int, _Rank] = {}
        self._files = KeptFiles()
        self._proc = proc
        self._host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._fd_size = os.stat("/proc/self/fd").st_size > 0  # Linux 6.2 and later: the number of open descriptors
        self._has_children = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        if not self._has_children:
            self.lines.append("process.* leaves out children: this kernel has no /proc/PID/task/TID/children")

    def watch(self, pids: Iterable[int]) -> None:
        """Watch exactly these PIDs from now on. A vanished rank starts over when its PID is named again."""
        wanted = sorted(set(pids))
        self._ranks = {pid: self._ranks.get(pid) or _Rank(pid) for pid in wanted}

    def read(self) -> list[Reading]:
        """Return the values of each rank that is running and had a previous reading."""
        readings = []
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        # The full walk is expensive: at most one rank each time, in addition to new ones.
        oldest = min(self._ranks.values(), key=lambda rank: rank.walked_at, default=None)
        due = oldest if oldest is not None and now - oldest.walked_at >= _WALK_INTERVAL_S else None
        groups: dict[tuple[str, ...], Memory | None] = {}
        for rank in list(self._ranks.values()):
            all_threads = rank is due or not rank.tree.members
            tree = self._tree(rank, now, all_threads=all_threads)
            if not tree.members:
                del self._ranks[rank.pid]
                continue
            if rank.tree.members:
                spent = _spent_ticks(rank, tree)
                rank.cpu_ticks += spent
                names, values = self._sum(tree.living(), rank.cpu_ticks, spent, now - rank.sampled_at)
                group_names, group_values = self._read_group(rank, groups, poll_again=all_threads)
                readings.append(Reading(f"pid:{rank.pid}", names + group_names, values + group_values))
            else:
                rank.cpu_ticks = sum(stat.total_ticks for stat in tree.members.values())
            rank.tree = tree
            rank.sampled_at = now
        self._files.sweep()
        return readings

    def trees(self) -> dict[int, Stats]:
        """Return the processes of each rank's tree, by the rank's PID. Any thread may call it."""
        return {rank.pid: rank.tree.members for rank in list(self._ranks.values())}

    def apart(self) -> dict[int, Stats]:
        """Return the children of each rank's tree that are not part of its work, as other ranks, by the rank's PID."""
        return {rank.pid: rank.tree.apart for rank in self._ranks.values()}

    def take_devices(self, holders: Mapping[str, Mapping[int, int]]) -> list[tuple[int, list[str]]]:
        """Return (PID, UUIDs) of each rank whose tree uses other GPUs than at the last call.

        holders: GPU → PIDs that use it, and their memory in bytes, -1 if unknown. A GPU on which a rank uses less than
        a share of its memory elsewhere does not belong to it: many trainings touch the first GPU by mistake, which
        costs a context there.
        """
        changes = []
        now = time.monotonic()
        for rank in self._ranks.values():
            members = rank.tree.members or (rank.pid,)
            held = {
                uuid: sum(n_bytes for pid, n_bytes in pids.items() if pid in members)
                for uuid, pids in holders.items()
                if not pids.keys().isdisjoint(members)
            }
            least = _INCIDENTAL_SHARE * max(held.values(), default=0)  # safeguard: bare-context-is-incidental
            devices = sorted(uuid for uuid, n_bytes in held.items() if n_bytes < 0 or n_bytes >= least)
            if devices != rank.seen_devices:
                rank.seen_devices, rank.devices_since = devices, now
            is_settled = not rank.devices or now - rank.devices_since >= _SETTLED_S
            if devices != rank.devices and is_settled:
                rank.devices = devices
                changes.append((rank.pid, devices))
        return changes

    def _sum(
        self, living: Stats, all_ticks: int, cpu_ticks: int, elapsed_s: float
    ) -> tuple[tuple[str, ...], tuple[float, ...]]:
        threads = memory_bytes = blocked = 0
        fds: int | None = 0
        for pid, stat in living.items():
            threads += stat.threads
            memory_bytes += resident_of(self._files.read(f"/proc/{pid}/statm"))
            blocked += stat.is_blocked
            if fds is not None:
                fds = self._add_descriptors(pid, fds)
        utilization = cpu_ticks / _TICKS_PER_S / max(elapsed_s, 1e-3)
        values = (utilization, float(memory_bytes), float(threads), all_ticks / _TICKS_PER_S, float(blocked))
        if fds is None:
            return PROCESS_NAMES[:-1], values
        return PROCESS_NAMES, (*values, float(fds))

    def _read_group(
        self, rank: _Rank, known: dict[tuple[str, ...], Memory | None], *, poll_again: bool
    ) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Return the memory of the rank's control group; nothing if there is none or its files are malformed.

        known: of groups that were read just now for other ranks, by their folders.
        """
        try:
            if rank.group is None or poll_again:  # a process may be moved to another group
                rank.group = MemoryGroup(rank.pid, proc=self._proc)  # safeguard: own-memory-group
            folders = rank.group.folders
            if folders not in known:
                known[folders] = rank.group.read(self._host_bytes)
            memory = known[folders]
        except (OSError, ValueError):
            rank.group = memory = None  # the rank or its group has gone; the next sample tries again
        if memory is None:
            return (), ()
        if memory.limit_bytes is None:
            return GROUP_NAMES[:1], (float(memory.usage_bytes),)
        return GROUP_NAMES, (float(memory.usage_bytes), float(memory.limit_bytes))

    def _add_descriptors(self, pid: int, total: int) -> int | None:
        try:
            if self._fd_size:
                return total + os.stat(f"/proc/{pid}/fd").st_size
            return total + len(os.listdir(f"/proc/{pid}/fd"))
        except PermissionError:
            return None  # another user's process: a sum without it would be wrong
        except OSError:
            return total  # it has just ended

    def _tree(self, rank: _Rank, now: float, *, all_threads: bool) -> _Tree:
        """Return the processes of a rank's tree; none when the rank has gone.

        Between full walks a process stays a member while it runs, and children of first threads are added: DataLoader
        workers appear there.
        """
        root = _read_any(rank.pid, self._files.read)
        if root is None or not root.is_alive or (rank.start_ticks and root.start_ticks != rank.start_ticks):
            return _Tree({}, {})
        rank.start_ticks = root.start_ticks
        members, apart = {rank.pid: root}, {}
        if all_threads:
            rank.walked_at = now
            rank.daemons.clear()
        else:
            members |= _still_there(rank.tree.members, self._files.read, but=self._ranks)
        waiting = list(members)
        while waiting:
            parent = waiting.pop()
            for pid in self._children(parent, members[parent].threads if all_threads else 1):
                stat = None if pid in members else _read_any(pid, self._files.read)
                if stat is None:
                    continue
                if pid in self._ranks or _is_daemon(rank, pid, stat):
                    apart[pid] = stat
                    continue
                if len(members) >= _TREE_PROCESSES_MAX:
                    self._emit_overfull(rank)
                    waiting.clear()
                    break
                members[pid] = stat
                waiting.append(pid)
        # Parents are read before their children: a child that its parent waits for in between is missed, never counted
        # twice.
        known = rank.tree.apart | {pid: stat for pid, stat in rank.tree.members.items() if pid in self._ranks}
        return _Tree(members, _still_there(known, self._files.read, but=members) | apart)

    def _emit_overfull(self, rank: _Rank) -> None:
        if not rank.overfull:
            rank.overfull = True
            self.lines.append(f"pid:{rank.pid} has over {_TREE_PROCESSES_MAX} processes; the rest are not counted")

    def _children(self, pid: int, threads: int) -> list[int]:
        if not self._has_children:
            return []
        if threads == 1:
            return [int(child) for child in self._files.read(f"/proc/{pid}/task/{pid}/children").split()]
        try:
            tids = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return []  # it has just ended
        return [int(child) for tid in tids for child in _read(f"/proc/{pid}/task/{tid}/children").split()]


def _spent_ticks(rank: _Rank, tree: _Tree) -> int:
    """Return the CPU time that a rank's tree used since its last sample.

    When a parent waits for a child, the child's time becomes part of the parent's. So the tree's time is the growth of
    own times and of times of waited-for children, minus the times of those children when they were last seen. That
    includes children too short-lived to be seen, and counts nothing twice; separate children are counted elsewhere.
    A child that ended is expected in its parent's time in this interval or the next: the parent may have been read just
    before it waited. After that it is no longer expected: a parent that ignores SIGCHLD does not wait.
    """
    before, since_ticks = rank.tree.members, int(rank.sampled_at * _TICKS_PER_S)  # whole ticks, as the kernel counts
    own = waited_for = 0
    for pid, stat in tree.members.items():
        old = before.get(pid)
        if old is not None and old.start_ticks == stat.start_ticks:
            own += stat.cpu_ticks - old.cpu_ticks
            waited_for += stat.children_ticks - old.children_ticks
        elif stat.start_ticks >= since_ticks:  # started since; an older one was only found now
            own += stat.cpu_ticks
            waited_for += stat.children_ticks
    # safeguard: waited-rank-cpu-apart
    ended = sum(stat.total_ticks for stat in _ended(before, tree.members) + _ended(rank.tree.apart, tree.apart))
    missing = ended + rank.expected_ticks - waited_for  # safeguard: child-cpu-counts-once
    rank.expected_ticks = min(max(missing, 0), ended)
    return max(own, 0) + max(-missing, 0)  # safeguard: short-children-cpu-counts


def _ended(before: Stats, now: Stats) -> list[Stat]:
    """Return the processes that existed before and whose parent has waited for them since, as they were last seen."""
    gone = [(pid, old) for pid, old in before.items() if pid not in now or now[pid].start_ticks != old.start_ticks]
    return [old for pid, old in gone if not _still_there({pid: old}, _read)]


def _still_there(stats: Stats, read: Callable[[str], bytes], *, but: Container[int] = ()) -> Stats:
    """Return the processes that are running or are zombies, with their current numbers. but: PIDs to leave out."""
    found = {pid: _read_any(pid, read) for pid in stats if pid not in but}
    return {pid: stat for pid, stat in found.items() if stat is not None and stat.start_ticks == stats[pid].start_ticks}


def read_stat(pid: int) -> Stat | None:
    """Return the numbers of one process; None when it has ended, also as a zombie, or is not visible."""
    stat = _read_any(pid, _read)
    return stat if stat is not None and stat.is_alive else None


def _read_any(pid: int, read: Callable[[str], bytes]) -> Stat | None:
    fields = split_stat(read(f"/proc/{pid}/stat"))
    if not fields or fields[0] == "X":
        return None
    children = int(fields[13]) + int(fields[14])
    numbers = (int(fields[SESSION]), own_ticks(fields), children, int(fields[17]), int(fields[START]))
    return Stat(fields[0] != "Z", *numbers, is_blocked=fields[0] == "D")


def _is_daemon(rank: _Rank, pid: int, stat: Stat) -> bool:
    """Return True if a process is an agent or a collector.

    Both lead a session, so few processes need a closer check.
    """
    if rank.daemons.get(pid) == stat.start_ticks:
        return True
    if stat.session != pid:
        return False
    command = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ")
    if not any(name in command for name in _DAEMONS):
        return False
    rank.daemons[pid] = stat.start_ticks
    return True


def _read(path: str) -> bytes:
    """Return the content of a file of /proc; nothing when its process has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return read_all(descriptor)
    except OSError:
        return b""  # ESRCH: it ended between open and read
    finally:
        os.close(descriptor)
