"""What the control groups of ranks use and are denied: CPU, processes, kills and pressure; cgroup v2 and v1.

Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/ and scheduler/sched-bwc.rst. Memory is in cgroup.py.
"""

import os
from collections.abc import Mapping, Sequence

from chiplog_agent.stats.host.files import read_file
from chiplog_agent.stats.host.pressure import RESOURCES, stalled_s
from chiplog_agent.stats.rank.cgroup import UNIFIED, find_all_groups
from chiplog_agent.stats.rank.process_tree import ProcessStats
from chiplog_agent.stats.source import Reading, Source
from chiplog_schemas.model.system_metrics import SLOW_S, SYSTEM_METRICS

_KILLS = {2: "memory.events", 1: "memory.oom_control"}
_PERIODS = {"cgroup.cpu.periods": "nr_periods", "cgroup.cpu.throttled_periods": "nr_throttled"}
_ELSEWHERE = ("cgroup.memory.usage", "cgroup.memory.limit", "cgroup.cpu.limit")  # or absent without a limit
_EXPECTED = tuple(name for name in SYSTEM_METRICS if name.startswith("cgroup.") and name not in _ELSEWHERE)
_US_PER_S = 1e6
_NS_PER_S = 1e9


class RankGroupUse(Source):
    """Reads the control groups of each rank. The device is `pid:<PID>`.

    What the kernel does not have, or no one may read, is absent. Limits and numbers belong to the group with the
    tightest CPU limit above the rank, else to its own, as for memory. The root group of v2 contains the whole host and
    is no container.
    """

    title = "control groups of ranks"
    period_s = SLOW_S

    def __init__(self, processes: ProcessStats, *, proc: str = "/proc") -> None:
        """Read control groups below `proc`."""
        self._processes = processes
        self._proc = proc

    def read(self) -> list[Reading]:
        """Return the values of each running rank's group."""
        readings = []
        for pid, tree in self._processes.trees().items():
            values = read_groups(pid, self._proc) if tree else {}
            if tree and os.path.exists(f"{self._proc}/{pid}"):
                self.missing = _missing(values)
            if values:
                readings.append(Reading(f"pid:{pid}", tuple(values), tuple(values.values())))
        return readings


def _missing(values: Mapping[str, float]) -> str:
    """Return a line about the values that a rank's control groups lack; a limit that is not set is none."""
    names = [name for name in _EXPECTED if name not in values]
    if not names:
        return ""
    return f"{', '.join(names)}: absent for ranks whose control groups are not mounted here or do not count that"


def read_groups(pid: int, proc: str) -> dict[str, float]:
    """Return the values of a process's control groups, by name; none when the process has ended."""
    try:
        found = find_all_groups(pid, proc, ("cpu", "cpuacct", "pids", "memory", UNIFIED))
    except (OSError, ValueError):
        return {}
    groups = {name: (version, _without_root(version, folders)) for name, (version, folders) in found.items()}
    values = _read_cpu(*groups["cpu"], groups["cpuacct"])
    version, folders = groups["pids"]
    if folders:
        _put(values, "cgroup.pids", folders[0], "pids.current")
    version, folders = groups["memory"]
    if folders and "oom_kill" in (kills := _table(f"{folders[0]}/{_KILLS[version]}")):
        values["cgroup.memory.oom_kills"] = kills["oom_kill"]
    _, folders = groups[UNIFIED]
    for resource in RESOURCES if folders else ():
        try:
            values[f"cgroup.pressure.{resource}"] = stalled_s(read_file(f"{folders[0]}/{resource}.pressure"))
        except (OSError, ValueError, IndexError):
            pass  # a kernel without it, or with psi=0
    return values


def _without_root(version: int, folders: Sequence[str]) -> Sequence[str]:
    if version == 2 and folders and not os.path.exists(f"{folders[-1]}/cgroup.events"):
        return folders[:-1]  # the root has no such file; the mount of a container is not the root
    return folders


def _read_cpu(version: int, folders: Sequence[str], accounts: tuple[int, Sequence[str]]) -> dict[str, float]:
    values: dict[str, float] = {}
    limits = {index: limit for index, folder in enumerate(folders) if (limit := _cpu_limit(version, folder))}
    tightest = min(limits, key=lambda index: limits[index], default=0)
    if limits:
        values["cgroup.cpu.limit"] = limits[tightest]
    if tightest < len(folders):
        table = _table(f"{folders[tightest]}/cpu.stat")
        _put_scaled(values, "cgroup.cpu.usage", table, "usage_usec", _US_PER_S)
        _put_scaled(values, "cgroup.cpu.throttled", table, "throttled_usec", _US_PER_S)
        _put_scaled(values, "cgroup.cpu.throttled", table, "throttled_time", _NS_PER_S)  # v1
        for name, key in _PERIODS.items():
            _put_scaled(values, name, table, key, 1.0)
    if accounts[0] == 1 and accounts[1]:
        same = (
            tightest if len(accounts[1]) == len(folders) else 0
        )  # cpu and cpuacct are one hierarchy nearly everywhere
        _put(values, "cgroup.cpu.usage", accounts[1][same], "cpuacct.usage", _NS_PER_S)
    return values


def _cpu_limit(version: int, folder: str) -> float | None:
    """Return the CPUs that a group may use; None without a limit of its own."""
    try:
        if version == 2:
            quota, period = read_file(f"{folder}/cpu.max").split()
        else:
            quota, period = (read_file(f"{folder}/cpu.cfs_{part}_us").strip() for part in ("quota", "period"))
        return None if quota in (b"max", b"-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _put(values: dict[str, float], name: str, folder: str, file: str, scale: float = 1.0) -> None:
    try:
        values[name] = int(read_file(f"{folder}/{file}")) / scale
    except (OSError, ValueError):
        pass  # this kernel does not have it, or the group is gone


def _put_scaled(values: dict[str, float], name: str, table: Mapping[str, float], key: str, scale: float) -> None:
    if key in table:
        values[name] = table[key] / scale


def _table(path: str) -> dict[str, float]:
    """Return the numbers of a file with lines of a key and a number; none if it cannot be read."""
    try:
        return {key.decode(): float(int(number)) for key, number in map(bytes.split, read_file(path).splitlines())}
    except (OSError, ValueError):
        return {}
