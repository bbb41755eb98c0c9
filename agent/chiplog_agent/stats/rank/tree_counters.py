"""What the processes of ranks read, wrote and switched: counters of the kernel, summed over the tree of each."""

import os
from typing import NamedTuple

from chiplog_agent.stats.host.files import read_file
from chiplog_agent.stats.rank.process_tree import ProcessStats, Stats
from chiplog_agent.stats.source import Reading, Source
from chiplog_schemas.model.system_metrics import SLOW_S

_IO_NAMES = ("process.io.read", "process.io.write")
_IO_KEYS = (b"read_bytes:", b"write_bytes:")
_SWITCHES_NAME = "process.context_switches"
_SWITCHES_KEYS = (b"voluntary_ctxt_switches:", b"nonvoluntary_ctxt_switches:")

_Process = tuple[int, int]  # PID and start time, which identify it despite reuse
_Values = dict[_Process, float]


class _Total:
    """One counter of a tree that does not fall when a process ends.

    passes_on: The kernel adds the counter of a process to that of the parent that waits for it.
    """

    def __init__(self, *, passes_on: bool) -> None:
        self._passes_on = passes_on
        self._last: _Values = {}
        self._expected = 0.0  # of processes that ended, and may not be in their parents' counters yet
        self.value = 0.0

    def add(self, now: _Values, apart: _Values) -> None:
        """Take the counters of all processes of the tree, and of children whose own growth does not count."""
        growth = sum(max(value - self._last.get(process, 0.0), 0.0) for process, value in now.items())
        if self._passes_on:
            # safeguard: waited-rank-io-apart
            ended = sum(value for process, value in self._last.items() if process not in now and process not in apart)
            known = ended + self._expected  # what a parent got from a child has been counted as the child's own
            self._expected = min(max(known - growth, 0.0), ended)
            growth = max(growth - known, 0.0)
        self._last = now | apart
        self.value += growth


class _Totals(NamedTuple):
    start_ticks: int  # of the rank
    read: _Total
    write: _Total
    switches: _Total


class RankCounters(Source):
    """Accumulates the growth of each process of each rank's tree. The device is `pid:<PID>`.

    A counter is absent while it cannot be read for one of the processes: they may be another user's, or the kernel has
    no such file. Context switches are those of first threads, the only ones that one file of a process tells.
    """

    title = "counters of ranks"
    period_s = SLOW_S

    def __init__(self, processes: ProcessStats) -> None:
        self._processes = processes
        self._totals: dict[int, _Totals] = {}

    def read(self) -> list[Reading]:
        """Return the counters of each running rank."""
        trees = {pid: tree for pid, tree in self._processes.trees().items() if pid in tree}
        self._totals = {pid: self._totals_of(pid, tree[pid].start_ticks) for pid, tree in trees.items()}
        apart = self._processes.apart()
        readings = []
        for pid, tree in trees.items():
            values = _take(self._totals[pid], tree, apart.get(pid, {}))
            if values:
                readings.append(Reading(f"pid:{pid}", tuple(values), tuple(values.values())))
        return readings

    def _totals_of(self, pid: int, start_ticks: int) -> _Totals:
        known = self._totals.get(pid)
        if known is not None and known.start_ticks == start_ticks:
            return known
        return _Totals(start_ticks, _Total(passes_on=True), _Total(passes_on=True), _Total(passes_on=False))


def _take(totals: _Totals, tree: Stats, apart: Stats) -> dict[str, float]:
    values: dict[str, float] = {}
    table = _read_all(tree, "io", _IO_KEYS)
    if table is not None:
        others = _read_all(apart, "io", _IO_KEYS) or {}
        for name, total, column in zip(_IO_NAMES, (totals.read, totals.write), (0, 1), strict=True):
            own, other = ({process: row[column] for process, row in rows.items()} for rows in (table, others))
            total.add(own, other)
            values[name] = total.value
    table = _read_all(tree, "status", _SWITCHES_KEYS)
    if table is not None:
        totals.switches.add({process: sum(row) for process, row in table.items()}, {})
        values[_SWITCHES_NAME] = totals.switches.value
    return values


def _read_all(tree: Stats, file: str, keys: tuple[bytes, ...]) -> dict[_Process, tuple[float, ...]] | None:
    """Return two numbers of each process that still exists; None if those of one cannot be read."""
    table = {}
    for pid, stat in tree.items():
        try:
            text = read_file(f"/proc/{pid}/{file}")
            table[pid, stat.start_ticks] = tuple(_number(text, key) for key in keys)
        except (PermissionError, ValueError):
            return None
        except OSError:
            if os.path.exists(f"/proc/{pid}/stat"):
                return None  # this kernel has no such file
    return table


def _number(text: bytes, key: bytes) -> float:
    """Return the number of a line. Raises ValueError where there is none."""
    _, found, rest = (b"\n" + text).partition(b"\n" + key)
    if not found:
        raise ValueError(f"no {key.decode()}")
    return float(int(rest.split(b"\n", 1)[0]))
