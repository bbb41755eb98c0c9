"""Rows on their way into DuckDB: facts as numpy columns, dimensions and small tables as lists."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]


@dataclass(slots=True)
class Matrix:
    """Rows of one tuple of k keys: producer (n,) int32; lead, seq, ts (n,) int64; values (n, k) float64.

    `lead` is the step, or the device's name ID for system samples.
    """

    producer: NDArray[np.int32]
    lead: NDArray[np.int64]
    seq: NDArray[np.int64]
    ts: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(slots=True)
class Batch:
    """Everything one transaction writes."""

    metrics: dict[tuple[int, ...], list[Matrix]] = field(default_factory=dict)
    phases: dict[tuple[int, ...], list[Matrix]] = field(default_factory=dict)
    system: dict[tuple[int, ...], list[Matrix]] = field(default_factory=dict)
    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)  # small tables, row by row
    names: list[tuple[int, str]] = field(default_factory=list)
    intervals: list[tuple[int, int, int, int]] = field(default_factory=list)  # producer, first, last, seen_at µs
    losses: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)  # all of a producer, replaced
    producers: set[int] = field(default_factory=set)  # changed: written again from the state
    runs: set[int] = field(default_factory=set)
    deleted: dict[int, bytes] = field(default_factory=dict)  # UUIDs of producers whose rows go
    restored: set[bytes] = field(default_factory=set)  # UUIDs that no longer count as deleted
    deleted_runs: set[int] = field(default_factory=set)
    saved_views: dict[str, tuple[str | None, int]] = field(default_factory=dict)  # by name: JSON, time in µs
    # (first, until, every) in µs: system samples in between become means over `every`, or go if that is 0. They concern
    # the samples up to the next receipt, where the flush must end.
    thinnings: list[tuple[int, int, int]] = field(default_factory=list)
    failed_changes: dict[bytes, str] = field(default_factory=dict)  # by ID: why they were set aside
    admitted: list[int] = field(default_factory=list)  # records with blocks that were parked and are applied
    received_us: int = 0  # when the collector received the newest record, in µs since 1970
    lacks_facts: bool = False  # the log no longer has all of them, because a store does
    n_points: int = 0
    n_events: int = 0

    @property
    def n_rows(self) -> int:
        """The size of a flush: points of matrices and rows of small tables."""
        return self.n_points + sum(map(len, self.rows.values()))

    def add(self, table: str, row: tuple[Any, ...]) -> None:
        """Add a row to a small table."""
        self.rows.setdefault(table, []).append(row)


def turn(matrices: dict[tuple[int, ...], list[Matrix]]) -> Columns | None:
    """Build one set of columns (producer, key, lead, seq, ts, value) of all matrices, sorted by key, producer, lead.

    Sorting rows before they are spread over their keys costs one sort per event rather than per point.
    """
    pieces: list[tuple[int, Matrix, NDArray[np.float64]]] = []
    for keys, group in matrices.items():
        matrix = _sorted(_joined(group))
        turned = np.ascontiguousarray(matrix.values.T)
        pieces += [(key, matrix, turned[column]) for column, key in enumerate(keys)]
    if not pieces:
        return None
    pieces.sort(key=lambda piece: piece[0])
    lengths = [len(matrix.seq) for _, matrix, _ in pieces]
    return {
        "producer": np.concatenate([matrix.producer for _, matrix, _ in pieces]),
        "key": np.repeat(np.array([key for key, _, _ in pieces], dtype=np.int32), lengths),
        "lead": np.concatenate([matrix.lead for _, matrix, _ in pieces]),
        "seq": np.concatenate([matrix.seq for _, matrix, _ in pieces]),
        "ts": np.concatenate([matrix.ts for _, matrix, _ in pieces]).view("datetime64[us]"),
        "value": np.concatenate([values for _, _, values in pieces]),
    }


def _joined(group: list[Matrix]) -> Matrix:
    if len(group) == 1:
        return group[0]
    return Matrix(
        np.concatenate([matrix.producer for matrix in group]),
        np.concatenate([matrix.lead for matrix in group]),
        np.concatenate([matrix.seq for matrix in group]),
        np.concatenate([matrix.ts for matrix in group]),
        np.concatenate([matrix.values for matrix in group]),
    )


def _sorted(matrix: Matrix) -> Matrix:
    producer, lead = matrix.producer, matrix.lead
    follows = (producer[1:] > producer[:-1]) | ((producer[1:] == producer[:-1]) & (lead[1:] >= lead[:-1]))
    if follows.all():
        return matrix
    order = np.lexsort((lead, producer))
    return Matrix(producer[order], lead[order], matrix.seq[order], matrix.ts[order], matrix.values[order])
