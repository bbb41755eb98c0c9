"""Pure: judge the labels of a running run: which one hangs, which ones wait for it, which one is slow."""

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

STALL_MIN_S = 10.0  # without a new step; an evaluation or a checkpoint of a small model takes less
STALL_STEPS = 5.0  # a rank stalls after this many times the usual step time
SLOW_RATIO = 1.2  # of the median step time


class Severity(IntEnum):
    """How much a label needs attention; the most urgent first."""

    FAILED = 0
    HANGS = 1
    STALLED = 2  # all labels stopped at the same step, and nothing shows which one is the cause
    WAITS = 3
    LATE = 4  # nothing arrives from its node: what the label does now is unknown
    SLOW = 5
    STARTING = 6
    RUNNING = 7
    FINISHED = 8


@dataclass
class RankRow:
    """One label in its newest attempt. Times are seconds before the frame; None is unknown."""

    label: str
    attempt: int = 0
    rank: int | None = None
    node: str | None = None
    state: str = "running"
    reason: str | None = None
    ended_s: float | None = None
    seen_s: float | None = None  # since its last event
    step: int | None = None
    idle_s: float | None = None  # since its last new step; without steps since its start
    steps_behind: int = 0
    pace_s: float | None = None  # seconds per step, over its last steps
    phase: str | None = None  # the newest that ended
    open_phase: str | None = None  # open for long; empty: in no phase
    open_s: float | None = None
    gpu: float | None = None  # utilisation, 0 to 1
    gpu_memory: float | None = None  # bytes
    gpu_memory_limit: float | None = None
    memory: float | None = None  # of its processes, bytes
    severity: Severity = field(default=Severity.RUNNING)

    @property
    def is_running(self) -> bool:
        """Return True if the label has not ended."""
        return self.state == "running"

    @property
    def status(self) -> str:
        """Return what the label does, as a word; for one that has ended its state."""
        return self.severity.name.lower() if self.is_running else self.state


# The columns of `chiplog top` in formats for programs, with the attributes of a row and the types of DuckDB.
_COLUMNS = {
    "label": ("label", "VARCHAR"),
    "rank": ("rank", "INTEGER"),
    "attempt": ("attempt", "INTEGER"),
    "node": ("node", "VARCHAR"),
    "state": ("state", "VARCHAR"),
    "status": ("status", "VARCHAR"),
    "reason": ("reason", "VARCHAR"),
    "step": ("step", "BIGINT"),
    "steps_behind": ("steps_behind", "BIGINT"),
    "idle_s": ("idle_s", "DOUBLE"),
    "seen_s": ("seen_s", "DOUBLE"),
    "ended_s": ("ended_s", "DOUBLE"),
    "step_time_s": ("pace_s", "DOUBLE"),
    "phase": ("phase", "VARCHAR"),
    "open_phase": ("open_phase", "VARCHAR"),
    "open_s": ("open_s", "DOUBLE"),
    "gpu_utilization": ("gpu", "DOUBLE"),
    "gpu_memory_bytes": ("gpu_memory", "DOUBLE"),
    "gpu_memory_limit_bytes": ("gpu_memory_limit", "DOUBLE"),
    "memory_bytes": ("memory", "DOUBLE"),
}
ROW_COLUMNS = tuple(_COLUMNS)
ROW_TYPES = {name: kind for name, (_, kind) in _COLUMNS.items()}


def row_values(row: RankRow) -> tuple[object, ...]:
    """Return a label as values of ROW_COLUMNS."""
    return tuple(getattr(row, attribute) for attribute, _ in _COLUMNS.values())


def judge(rows: Sequence[RankRow], late_nodes: Collection[str] = ()) -> None:
    """Set the severity of each label. late_nodes: nodes from which nothing arrives.

    A label stalls if it has no new step for 10 s and for 5 times the median step time. Of the stalled labels those at a
    lower step than the foremost one hang, and the others wait. The foremost step may be that of a label that has
    finished. If all are at the foremost step, those hang that are not in the phase in which more than half of them are.
    A label that stalls on a late node is late: its new steps may be on their way.
    """
    running = [row for row in rows if row.is_running]
    typical = median_pace_s(running)
    limit = stall_limit_s(running)
    # Not of labels that failed: those that wait for a failed one may be behind it.
    ahead = [row for row in rows if row.is_running or row.state == "finished"]  # safeguard: finished-label-is-ahead
    front = max((row.step for row in ahead if row.step is not None), default=None)
    for row in rows:
        row.severity = _severity_of(row, typical, limit, has_steps=front is not None)
        if row.severity == Severity.STALLED and row.node in late_nodes:  # safeguard: late-telemetry-blames-no-label
            row.severity = Severity.LATE
    stalled = [row for row in running if row.severity == Severity.STALLED]
    if not stalled:
        return
    behind = [row for row in stalled if row.step is not None and front is not None and row.step < front]
    odd = behind or _in_other_phase(stalled)  # safeguard: lowest-step-hangs
    for row in odd:
        row.severity = Severity.HANGS
    if odd:
        for row in stalled:
            if row.severity == Severity.STALLED:
                row.severity = Severity.WAITS


def _severity_of(row: RankRow, typical: float | None, limit: float, *, has_steps: bool) -> Severity:
    if not row.is_running:
        return Severity.FINISHED if row.state == "finished" else Severity.FAILED
    if row.step is None:
        is_silent = row.seen_s is not None and row.seen_s > limit
        return Severity.STALLED if is_silent and has_steps and row.rank is not None else Severity.STARTING
    if row.idle_s is not None and row.idle_s > limit:  # safeguard: old-step-is-a-stall
        return Severity.STALLED
    if typical and row.pace_s is not None and row.pace_s > SLOW_RATIO * typical:
        return Severity.SLOW
    return Severity.RUNNING


def _in_other_phase(stalled: Sequence[RankRow]) -> list[RankRow]:
    """Return the labels that are not in the phase of the majority; none if no phase has a majority."""
    phases = Counter(row.open_phase for row in stalled)
    [(common, count)] = phases.most_common(1)
    if common is None or count * 2 <= len(stalled) or len(phases) < 2:
        return []
    return [row for row in stalled if row.open_phase != common]


def median_pace_s(rows: Sequence[RankRow]) -> float | None:
    """Return the median step time; None if no label has one."""
    paces = [row.pace_s for row in rows if row.pace_s is not None and row.is_running]
    return statistics.median(paces) if paces else None


def stall_limit_s(rows: Sequence[RankRow]) -> float:
    """Return after how many seconds without a new step a label stalls."""
    return max(STALL_MIN_S, STALL_STEPS * (median_pace_s(rows) or 0.0))


# What `s` cycles through; each returns a key for sorted().
SORTS: dict[str, Callable[[RankRow], tuple[object, ...]]] = {
    "attention": lambda row: (
        row.severity,
        row.step if row.severity == Severity.HANGS and row.step is not None else 0,
        -(row.pace_s or 0.0) if row.severity == Severity.SLOW else 0.0,
        *_by_rank(row),
    ),
    "rank": lambda row: _by_rank(row),
    "step": lambda row: (row.step is None, row.step or 0, *_by_rank(row)),
    "time": lambda row: (-(row.pace_s or 0.0), *_by_rank(row)),
    "gpu": lambda row: (row.gpu is None, row.gpu or 0.0, *_by_rank(row)),
    "memory": lambda row: (-(row.gpu_memory or 0.0), -(row.memory or 0.0), *_by_rank(row)),
    "seen": lambda row: (-(row.seen_s or 0.0), *_by_rank(row)),
}


def _by_rank(row: RankRow) -> tuple[object, ...]:
    return (row.rank is None, row.rank or 0, *label_order(row.label))


def label_order(label: str) -> tuple[str, int, str]:
    """Return a key that sorts rank2 before rank10."""
    stem = label.rstrip("0123456789")
    return (stem, int(label[len(stem) :] or 0), label)


def matches(row: RankRow, text: str) -> bool:
    """Return True if each word of a filter is part of the label, node, state, reason or phase."""
    names = (row.label, row.node, row.state, row.severity.name, row.reason, row.phase, row.open_phase)
    searched = " ".join(name for name in names if name).lower()
    return all(word in searched for word in text.lower().split())


@dataclass
class NodeRow:
    """The labels of one node, added up. The numbers of steps are of labels that have one."""

    node: str
    rows: list[RankRow]

    @property
    def worst(self) -> RankRow:
        """Return the label that needs attention most."""
        return min(self.rows, key=SORTS["attention"])

    def values(self, name: str) -> list[float]:
        """Return the known values of one column."""
        return [value for row in self.rows if (value := getattr(row, name)) is not None]


def by_node(rows: Sequence[RankRow], sort: str) -> list[NodeRow]:
    """Group labels by node. Nodes are in the order of their first label, in the order of `sort`."""
    nodes: dict[str, NodeRow] = {}
    for row in sorted(rows, key=SORTS[sort]):
        nodes.setdefault(row.node or "", NodeRow(row.node or "", [])).rows.append(row)
    return list(nodes.values())
