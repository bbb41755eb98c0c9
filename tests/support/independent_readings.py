"""What the sampler reads of a host and a rank, read beside it in another way: sysfs, psutil or other files of /proc.

Control groups are made by the caller. Nothing here uses the parsers of the agent.
"""

import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

from chiplog_agent.stats.sampler_process import Sample
from chiplog_schemas.model.system_metrics import SYSTEM_METRICS

RANK = "rank"  # the device of a rank's readings
BUSY, ELAPSED, SPENT = "busy", "elapsed", "spent"  # ticks, from which shares of CPU follow
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES = 512  # Documentation/block/stat.rst
_PSS_INTERVAL_S = 0.5  # smaps takes milliseconds per process
_FLOAT = 1e-6  # what arithmetic of seconds may differ by
_BESIDE_S = 0.3  # a child of the rank that only the sampler counts adds less than the rank itself in this time
# In units of the metric; others have exact sources. A share of CPU is a number of ticks in a second.
ROUNDING = {
    "system.cpu.utilization": _TICK_S / (os.cpu_count() or 1),
    "process.cpu.utilization": _TICK_S,
    "system.cpu.load_average.1m": 0.01,
}
# By how much a gauge may be outside of the range of all readings: as a share, and in units of the metric.
_OUTSIDE_SHARE = 0.01
_OUTSIDE = {name: 3 * rounding for name, rounding in ROUNDING.items()} | {
    "process.threads": 1.0,  # the rank's child, which only the sampler counts
    "process.blocked": 1.0,
    "process.open_file_descriptors": 20.0,
}
Key = tuple[str, str]  # device and name
Values = dict[Key, float]


class Reading(NamedTuple):
    """Values that were read between two times, in µs since the epoch."""

    begun_us: int
    ended_us: int
    values: Values


class Received(NamedTuple):
    """A sample, and when it had arrived, in µs since the epoch: after all of its values had been read."""

    sample: Sample
    at_us: int


class Groups(NamedTuple):
    """The control groups of a rank, of v1 except the one with pressure; None for one that could not be made."""

    cpu: Path | None = None
    cpuacct: Path | None = None
    memory: Path | None = None
    pids: Path | None = None
    unified: Path | None = None


@dataclass
class Observer:
    """Reads a host, and a rank whose processes are known."""

    processes: list[int]
    groups: Groups
    file_systems: tuple[str, ...] = ()
    _known: dict[int, psutil.Process] = field(default_factory=dict)
    _pss_at: float = 0.0

    def read(self) -> Reading:
        begun_us = time.time_ns() // 1000
        values = {("", name): value for name, value in _host()}
        for path in self.file_systems:
            about = os.statvfs(path)
            values[f"fs:{path}", "system.filesystem.usage"] = (about.f_blocks - about.f_bfree) * about.f_frsize
            values[f"fs:{path}", "system.filesystem.limit"] = about.f_blocks * about.f_frsize
        for kind, folder, read in (("disk", "/sys/block", _disk), ("nic", "/sys/class/net", _nic)):
            for device in _physical(folder):
                for name, value in read(f"{folder}/{device}"):
                    values[f"{kind}:{device}", name] = value
                    values["", name] = values.get(("", name), 0) + value
        values |= {(RANK, name): value for name, value in (*self._rank(), *_group(self.groups))}
        return Reading(begun_us, time.time_ns() // 1000, values)

    def _rank(self) -> Iterator[tuple[str, float]]:
        sums = dict.fromkeys(("memory", "threads", "fds", "blocked", "read", "write", "switches", "cpu"), 0.0)
        for pid in self.processes:
            process = self._known.setdefault(pid, psutil.Process(pid))
            with process.oneshot():
                switches, transferred = process.num_ctx_switches(), process.io_counters()
                sums["memory"] += _status(pid, "VmRSS:") * 1024
                sums["threads"] += process.num_threads()  # status
                sums["blocked"] += process.status() == psutil.STATUS_DISK_SLEEP
                cpu_s = sum(process.cpu_times()[:4])  # own, and of children that it has waited for
                sums["cpu"] += round(cpu_s / _TICK_S)
                sums["switches"] += switches.voluntary + switches.involuntary
                sums["read"] += transferred.read_bytes
                sums["write"] += transferred.write_bytes
            sums["fds"] += process.num_fds()
        yield "process.memory.usage", sums["memory"]
        yield "process.threads", sums["threads"]
        yield "process.open_file_descriptors", sums["fds"]
        yield "process.blocked", sums["blocked"]
        yield "process.io.read", sums["read"]
        yield "process.io.write", sums["write"]
        yield "process.context_switches", sums["switches"]
        yield "process.cpu.time", sums["cpu"] * _TICK_S
        yield SPENT, sums["cpu"] * _TICK_S
        if time.monotonic() - self._pss_at >= _PSS_INTERVAL_S:
            self._pss_at = time.monotonic()
            yield "process.memory.pss", sum(map(_pss, self.processes))


def _host() -> Iterator[tuple[str, float]]:
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, _first_line("/proc/stat").split()[1:9])
    yield BUSY, user + nice + system + irq + softirq + steal
    yield ELAPSED, user + nice + system + idle + iowait + irq + softirq + steal
    yield "system.cpu.load_average.1m", float(_first_line("/proc/loadavg").split()[0])
    memory = _table("/proc/meminfo")
    yield "system.memory.usage", 1024 * (memory["MemTotal:"] - memory["MemAvailable:"])
    yield "system.memory.limit", 1024 * memory["MemTotal:"]
    yield "system.paging.faults", _table("/proc/vmstat")["pgfault"]
    root = os.statvfs("/")
    yield "system.filesystem.usage", (root.f_blocks - root.f_bfree) * root.f_frsize
    for resource in ("cpu", "memory", "io"):
        if (stalled := _pressure(f"/proc/pressure/{resource}")) is not None:
            yield f"system.pressure.{resource}", stalled


def _disk(folder: str) -> Iterator[tuple[str, float]]:
    fields = Path(folder, "stat").read_text().split()
    yield "system.disk.io.read", int(fields[2]) * _SECTOR_BYTES
    yield "system.disk.io.write", int(fields[6]) * _SECTOR_BYTES


def _nic(folder: str) -> Iterator[tuple[str, float]]:
    of = {path.name: int(path.read_text()) for path in Path(folder, "statistics").iterdir()}
    yield "system.network.io.receive", of["rx_bytes"]
    yield "system.network.io.transmit", of["tx_bytes"]
    yield "system.network.errors", of["rx_errors"] + of["tx_errors"]
    yield "system.network.dropped", of["rx_dropped"] + of["rx_missed_errors"] + of["tx_dropped"]


def _group(groups: Groups) -> Iterator[tuple[str, float]]:
    if groups.memory is not None:
        cache = _table(groups.memory / "memory.stat")["total_inactive_file"]
        yield "cgroup.memory.usage", int(_first_line(groups.memory / "memory.usage_in_bytes")) - cache
        yield "cgroup.memory.limit", int(_first_line(groups.memory / "memory.limit_in_bytes"))
        yield "cgroup.memory.oom_kills", _table(groups.memory / "memory.oom_control")["oom_kill"]
    if groups.cpu is not None:
        table = _table(groups.cpu / "cpu.stat")
        yield "cgroup.cpu.periods", table["nr_periods"]
        yield "cgroup.cpu.throttled_periods", table["nr_throttled"]
        yield "cgroup.cpu.throttled", table["throttled_time"] / 1e9
        quota, period = (int(_first_line(groups.cpu / f"cpu.cfs_{part}_us")) for part in ("quota", "period"))
        yield "cgroup.cpu.limit", quota / period
    if groups.cpuacct is not None:
        yield "cgroup.cpu.usage", int(_first_line(groups.cpuacct / "cpuacct.usage")) / 1e9
    if groups.pids is not None:
        yield "cgroup.pids", int(_first_line(groups.pids / "pids.current"))
    for resource in ("cpu", "memory", "io") if groups.unified is not None else ():
        if (stalled := _pressure(f"{groups.unified}/{resource}.pressure")) is not None:
            yield f"cgroup.pressure.{resource}", stalled


def _physical(folder: str) -> list[str]:
    names = [name for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}/device")]
    return names or [name for name in os.listdir(folder) if name != "lo"]


def _pressure(path: str) -> float | None:
    try:
        return int(_first_line(path).rpartition("=")[2]) / 1e6
    except OSError:
        return None  # a kernel without it


def _status(pid: int, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def _pss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _first_line(path: str | Path) -> str:
    with open(path, encoding="ascii") as file:
        return file.readline()


def _table(path: str | Path) -> dict[str, int]:
    rows = (line.split() for line in Path(path).read_text(encoding="ascii").splitlines())
    return {row[0]: int(row[1]) for row in rows if row[1].isdecimal()}


@dataclass
class Accuracy:
    """How the samples of one metric agree with the readings.

    Attributes:
        n: The samples that were compared.
        n_outside: Samples that are not between the readings before and after; of a gauge: not in the range of all.
        grown: Of a counter: by how much it grew.
        errors: Of a gauge: against the reading at the same time, in its unit and as a share.
    """

    is_counter: bool
    n: int = 0
    n_outside: int = 0
    grown: float = 0.0
    errors: list[tuple[float, float]] = field(default_factory=list)

    @property
    def error(self) -> float:
        """The median error, in the metric's unit."""
        return statistics.median(error for error, _ in self.errors)

    @property
    def share(self) -> float:
        """The median error, as a share of the value."""
        return statistics.median(share for _, share in self.errors)


def compare(samples: Iterable[Received], readings: list[Reading], rank: int) -> dict[str, Accuracy]:
    """Compare each value of the host, its devices and a rank with the readings around it, by metric that was read."""
    names = {name for of in readings for _, name in of.values if name in SYSTEM_METRICS} | _SHARES.keys()
    found = {name: Accuracy(SYSTEM_METRICS[name].is_counter) for name in names}
    first: Values = {}
    last_us: dict[str, int] = {}
    ranges: dict[Key, tuple[float, float]] = {}
    for sample, received_us in samples:
        device = RANK if sample.device == f"pid:{rank}" else sample.device
        for name, value in zip(sample.names, sample.values, strict=True):
            if (of := found.get(name)) is None:
                continue
            if name in _SHARES:
                since_us, last_us[name] = last_us.get(name), sample.ts_us
                expected = None if since_us is None else _share(name, readings, since_us, sample.ts_us)
            elif of.is_counter:
                bounds = _around(readings, (device, name), sample.ts_us, received_us)
                if bounds is not None:
                    of.n += 1
                    of.n_outside += not bounds[0] - _FLOAT <= value <= bounds[1] + _FLOAT
                    of.grown = max(of.grown, value - first.setdefault((device, name), value))
                continue
            else:
                expected = _nearest(readings, (device, name), sample)
            if expected is not None:
                of.n += 1
                key = (device, name)
                low, high = ranges[key] = ranges.get(key) or _range(readings, key)
                of.n_outside += not low <= value <= high
                error = abs(value - expected)
                of.errors.append((error, error / abs(expected) if expected else float(error > 0.0)))
    return found


# Which counters a share of CPU follows from: ticks of cores, or s of processes.
_SHARES: Mapping[str, tuple[Key, Key | None]] = {
    "system.cpu.utilization": (("", BUSY), ("", ELAPSED)),
    "process.cpu.utilization": ((RANK, SPENT), None),
}


def _share(name: str, readings: list[Reading], since_us: int, until_us: int) -> float | None:
    above, below = _SHARES[name]
    values = [_interpolated(readings, above, at_us) for at_us in (since_us, until_us)]
    whole = [at / 1e6 if below is None else _interpolated(readings, below, at) for at in (since_us, until_us)]
    if None in values or None in whole:
        return None
    return (values[1] - values[0]) / (whole[1] - whole[0])  # type: ignore[operator]


def _interpolated(readings: list[Reading], key: Key, at_us: int) -> float | None:
    for before, after in pairwise(readings):
        if before.begun_us <= at_us <= after.begun_us:
            share = (at_us - before.begun_us) / (after.begun_us - before.begun_us)
            return before.values[key] + share * (after.values[key] - before.values[key])
    return None


def _around(readings: list[Reading], key: Key, begun_us: int, ended_us: int) -> tuple[float, float] | None:
    """Return the values before the sampler began to read, which is the time of its sample, and after it had."""
    before = [of.values[key] for of in readings if key in of.values and of.ended_us <= begun_us - _BESIDE_S * 1e6]
    after = [of.values[key] for of in readings if key in of.values and of.begun_us >= ended_us + _BESIDE_S * 1e6]
    return (before[-1], after[0]) if before and after else None


def _range(readings: list[Reading], key: Key) -> tuple[float, float]:
    """Return the bounds of a gauge. A share of CPU is a mean of those between readings."""
    name = key[1]
    if name in _SHARES:
        shares = [_share(name, [one, next_], one.begun_us, next_.begun_us) for one, next_ in pairwise(readings)]
        values = [share for share in shares if share is not None]
    else:
        values = [of.values[key] for of in readings if key in of.values]
    low, high, more = min(values), max(values), _OUTSIDE.get(name, 0.0)
    return low - _OUTSIDE_SHARE * abs(low) - more, high + _OUTSIDE_SHARE * abs(high) + more


def _nearest(readings: list[Reading], key: Key, sample: Sample) -> float | None:
    at_us = float(sample.ts_us)
    if key[1] == "process.memory.pss":  # one process after another
        at_us -= dict(zip(sample.names, sample.values, strict=True))["process.memory.pss.age"] / 2 * 1e6
    of_key = [of for of in readings if key in of.values]
    nearest = min(of_key, key=lambda of: abs((of.begun_us + of.ended_us) / 2 - at_us), default=None)
    return None if nearest is None else nearest.values[key]
