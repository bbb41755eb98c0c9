"""Samples of the ranks: CPU, memory, threads and descriptors, summed over the process tree of each.

Children come from /proc/PID/task/TID/children, and everything else from /proc/PID/stat: one open and one read each.
"""

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

PROCESS_NAMES = (
    "process.cpu.utilization",
    "process.memory.usage",
    "process.threads",
    "process.open_file_descriptors",
)
_WALK_INTERVAL_S = 10.0  # children of threads other than the first are looked for this often: a rank has 100 threads
_TREE_PROCESSES_MAX = 1024  # per rank: ten times what DataLoaders and compilers start; a fork bomb must not hurt us
_READ_BYTES_MAX = 65_536  # a stat line has 400 bytes; 65,536 bytes of children are 8,000 processes
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DAEMONS = (b"chiplog_agent", b"chiplog_collector", b"chiplog agent", b"chiplog collector")


class Stat(NamedTuple):
    """What is used of /proc/PID/stat; fields by their numbers in proc(5)."""

    session: int  # 6
    cpu_ticks: int  # 14 + 15: user and system time of all threads
    threads: int  # 20
    start_ticks: int  # 22: since boot; with the PID it names a process beyond reuse
    rss_pages: int  # 24


class _Rank:
    """One watched process, its tree, and where its CPU time stood at the last sample."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.start_ticks = 0
        self.walked_at = 0.0
        self.sampled_at = 0.0  # seconds since boot, the clock of start_ticks
        self.members: dict[int, Stat] = {}
        self.daemons: dict[int, int] = {}  # PID → start_ticks of our own daemons, which this rank has started
        self.overfull = False


class ProcessStats:
    """Samples the process trees of a set of ranks.

    | name | unit | meaning |
    |---|---|---|
    | process.cpu.utilization | 1 | CPU time per time since the sample before; 1 is one core |
    | process.memory.usage | By | sum of resident sets; pages that processes share count in each |
    | process.threads | {thread} | |
    | process.open_file_descriptors | {fd} | absent where they may not be counted |

    The device is `pid:<PID>`. A rank's first sample comes one period after it is first seen. A vanished rank is absent.
    A tree ends at other watched ranks, and at agents and collectors that a rank has started: those are not its work.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []  # reasons, said once each; the caller empties it
        self._ranks: dict[int, _Rank] = {}
        self._fd_size = os.stat("/proc/self/fd").st_size > 0  # Linux 6.2 and later: the number of open descriptors
        self._has_children = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        if not self._has_children:
            self.lines.append("process.* leaves out children: this kernel has no /proc/PID/task/TID/children")

    def watch(self, pids: Iterable[int]) -> None:
        """Watch exactly these PIDs from now on. A rank that had vanished begins anew when its PID is named again."""
        wanted = sorted(set(pids))
        self._ranks = {pid: self._ranks.get(pid) or _Rank(pid) for pid in wanted}

    def sample(self) -> list[tuple[str, tuple[str, ...], tuple[float, ...]]]:
        """Return (device, names, values) of each rank that lives and was there one sample ago."""
        samples = []
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        # The full walk is the dear part: at most one rank each time, besides new ones.
        oldest = min(self._ranks.values(), key=lambda rank: rank.walked_at, default=None)
        due = oldest if oldest is not None and now - oldest.walked_at >= _WALK_INTERVAL_S else None
        for rank in list(self._ranks.values()):
            tree = self._tree(rank, now, all_threads=rank is due or not rank.members)
            if not tree:
                del self._ranks[rank.pid]
                continue
            if rank.members:
                samples.append((f"pid:{rank.pid}", *self._sum(rank, tree, now)))
            rank.members = tree
            rank.sampled_at = now
        return samples

    def _sum(self, rank: _Rank, tree: dict[int, Stat], now: float) -> tuple[tuple[str, ...], tuple[float, ...]]:
        cpu_ticks = threads = rss_pages = 0
        fds: int | None = 0
        for pid, stat in tree.items():
            before = rank.members.get(pid)
            if before is not None and before.start_ticks == stat.start_ticks:
                cpu_ticks += stat.cpu_ticks - before.cpu_ticks
            elif stat.start_ticks >= rank.sampled_at * _TICKS_PER_S:
                cpu_ticks += stat.cpu_ticks  # born since: all of its time falls into this period
            threads += stat.threads
            rss_pages += stat.rss_pages
            if fds is not None:
                fds = self._add_descriptors(pid, fds)
        utilization = max(cpu_ticks, 0) / _TICKS_PER_S / max(now - rank.sampled_at, 1e-3)
        values = (utilization, float(rss_pages * _PAGE_BYTES), float(threads))
        if fds is None:
            return PROCESS_NAMES[:3], values
        return PROCESS_NAMES, (*values, float(fds))

    def _add_descriptors(self, pid: int, total: int) -> int | None:
        try:
            if self._fd_size:
                return total + os.stat(f"/proc/{pid}/fd").st_size
            return total + len(os.listdir(f"/proc/{pid}/fd"))
        except PermissionError:
            return None  # another user's process: a sum without it would be wrong
        except OSError:
            return total  # it has just ended

    def _tree(self, rank: _Rank, now: float, *, all_threads: bool) -> dict[int, Stat]:
        """Return the living processes of a rank's tree; empty when the rank has gone.

        Between full walks a process stays a member while it lives, and children of first threads are added: that is
        where DataLoader workers appear.
        """
        root = read_stat(rank.pid)
        if root is None or (rank.start_ticks and root.start_ticks != rank.start_ticks):
            return {}
        rank.start_ticks = root.start_ticks
        tree = {rank.pid: root}
        if all_threads:
            rank.walked_at = now
            rank.daemons.clear()
        else:
            for pid, before in rank.members.items():
                if pid not in tree and (stat := read_stat(pid)) and stat.start_ticks == before.start_ticks:
                    tree[pid] = stat
        waiting = list(tree)
        while waiting:
            parent = waiting.pop()
            for pid in self._children(parent, tree[parent].threads if all_threads else 1):
                if pid in tree or pid in self._ranks:
                    continue
                stat = read_stat(pid)
                if stat is None or _is_daemon(rank, pid, stat):
                    continue
                if len(tree) >= _TREE_PROCESSES_MAX:
                    self._say_overfull(rank)
                    return tree
                tree[pid] = stat
                waiting.append(pid)
        return tree

    def _say_overfull(self, rank: _Rank) -> None:
        if not rank.overfull:
            rank.overfull = True
            self.lines.append(f"pid:{rank.pid} has over {_TREE_PROCESSES_MAX} processes; the rest are not counted")

    def _children(self, pid: int, threads: int) -> list[int]:
        if not self._has_children:
            return []
        if threads == 1:
            return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]
        try:
            tids = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return []  # it has just ended
        return [int(child) for tid in tids for child in _read(f"/proc/{pid}/task/{tid}/children").split()]


def read_stat(pid: int) -> Stat | None:
    """Return the numbers of one process; None when it has ended, a zombie included, or may not be seen."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()  # the name before it may hold spaces and brackets
    if len(fields) < 22 or fields[0] in (b"Z", b"X"):
        return None
    return Stat(int(fields[3]), int(fields[11]) + int(fields[12]), int(fields[17]), int(fields[19]), int(fields[21]))


def _is_daemon(rank: _Rank, pid: int, stat: Stat) -> bool:
    """Tell whether a process is an agent or a collector. Ours lead sessions of their own, so few are looked at."""
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
    """Return what a file of /proc holds; nothing when its process has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _READ_BYTES_MAX)
    except OSError:
        return b""  # ESRCH: it ended between open and read
    finally:
        os.close(descriptor)
