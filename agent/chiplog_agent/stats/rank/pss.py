"""The proportional set size of ranks: memory in which a page that processes share counts once.

The kernel walks every page of a process for it, about 4 ms for one that has loaded torch, and meanwhile the process
cannot map memory. So this reads one process after another, on a thread of its own, within a small share of a core.
"""

import os
import time

from chiplog_agent.stats.host.files import read_file
from chiplog_agent.stats.rank.process_tree import ProcessStats
from chiplog_agent.stats.source import AbsentError, Reading, Source
from chiplog_schemas.model.system_metrics import SLOW_S

_NAMES = ("process.memory.pss", "process.memory.pss.age")
_CPU_SHARE = 0.001  # of one core; agent and sampler together stay within 2 % of it
_CREDIT_S = 10.0  # unused time that may be caught up on: 10 ms of CPU
_PSS = b"\nPss:"


class RankPss(Source):
    """Reads the processes of a rank, then sums them up, then continues with the rank whose sum is the oldest.

    The device is `pid:<PID>`. Processes that start in between are part of the next sum. The age of a sum is that of
    its oldest part. It is absent if a process is another user's.
    """

    title = "proportional memory of ranks"
    deadline_s = 5.0  # a process that holds its lock while it waits for a device blocks its readers

    def __init__(self, processes: ProcessStats) -> None:
        self._processes = processes
        self._free_at = 0.0  # monotonic: when the CPU time spent so far is a share of the time that has passed
        self._summed_at: dict[int, float] = {}
        self._rank = 0
        self._waiting: list[int] = []  # processes of the rank that are not read yet
        self._parts: dict[int, int] = {}  # PID → bytes
        self._begun_at = 0.0

    def read(self) -> list[Reading]:
        """Read as many processes as the share of a core allows, and return the sums that are complete."""
        if not os.path.exists("/proc/self/smaps_rollup"):
            raise AbsentError("process.memory.pss is absent: Linux before 4.14 has no smaps_rollup")
        now = time.monotonic()
        self._free_at = max(self._free_at, now - _CREDIT_S)
        readings: list[Reading] = []
        spent_s = time.thread_time()
        while self._free_at <= now and (self._waiting or self._begin(now)):
            readings += self._read_next()
            before_s, spent_s = spent_s, time.thread_time()
            self._free_at += (spent_s - before_s) / _CPU_SHARE  # safeguard: pss-bounded-cpu
        return readings

    def _begin(self, now: float) -> bool:
        """Choose the next rank. Returns False if every sum is fresh."""
        trees = {pid: tree for pid, tree in self._processes.trees().items() if tree}
        self._summed_at = {pid: self._summed_at.get(pid, now - SLOW_S) for pid in trees}
        self._rank = min(self._summed_at, key=lambda pid: self._summed_at[pid], default=0)
        if not self._rank or now - self._summed_at[self._rank] < SLOW_S:
            return False
        self._summed_at[self._rank] = self._begun_at = now
        self._parts = {}
        self._waiting = list(trees[self._rank])
        return True

    def _read_next(self) -> list[Reading]:
        pid = self._waiting.pop()
        try:
            self._parts[pid] = pss_bytes(pid)
        except PermissionError:
            self._waiting.clear()  # a sum without it would be wrong
            return []
        except (OSError, ValueError, IndexError):
            pass  # it has ended
        if self._waiting:
            return []
        members = self._processes.trees().get(self._rank, {})
        values = [value for pid, value in self._parts.items() if pid in members]
        if not values:
            return []
        age_s = time.monotonic() - self._begun_at
        return [Reading(f"pid:{self._rank}", _NAMES, (float(sum(values)), age_s))]


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of one process. Raises OSError, or ValueError or IndexError when it has none."""
    return int(read_file(f"/proc/{pid}/smaps_rollup").split(_PSS, 1)[1].split(None, 1)[0]) << 10
