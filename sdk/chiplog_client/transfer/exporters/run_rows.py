"""The values of one run in the order in which each label logged them, read from tables of an export."""

import heapq
import json
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from chiplog_client.transfer.open_directory import OpenDirectory

_MEMORY_BYTES = 512 << 20  # of DuckDB: larger sorts spill
_FETCHED_ROWS = 10_000
_PLACE = operator.itemgetter(0, 1, 2, 3)  # label, attempt, producer, seq


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """A logged histogram: n + 1 edges and n counts."""

    edges: list[float]
    counts: list[float]


@dataclass(frozen=True, slots=True)
class MediaRow:
    """A logged image, table, film …: its content by SHA-256, and whether the collector has it."""

    kind: str
    sha256: str
    is_stored: bool
    metadata: dict[str, Any]


# By table: the columns that the value is made of, and what makes it; None: it is the only column.
_TABLES: dict[str, tuple[str, Callable[..., Any] | None]] = {
    "metrics": ("value", None),
    "texts": ("value", None),
    "histograms": ("edges, counts", HistogramRow),
    "media": (
        "kind, sha256, stored_at IS NOT NULL, metadata",
        lambda kind, sha256, is_stored, metadata: MediaRow(kind, sha256, is_stored, json.loads(metadata)),
    ),
}
TABLES = tuple(_TABLES)

Value = float | str | HistogramRow | MediaRow


class LogCall(NamedTuple):
    """What one call of `log()` recorded as one event: numbers together, each other value by itself. us: since 1970."""

    label: str
    attempt: int
    step: int
    us: int
    values: list[tuple[str, Value]]


@dataclass
class RunRows:
    """The tables of an export in a directory. Use it as a context manager.

    Attributes:
        directory: It has the Parquet files of `TABLES` that have rows, and room for what does not fit into memory.
        on_progress: Called with the number of values that were read, and with that of all.
    """

    directory: Path
    on_progress: Callable[[int, int], None] = lambda *_: None
    _n_read: int = field(default=0, init=False)

    def __enter__(self) -> "RunRows":
        import duckdb

        self._directory = OpenDirectory(self.directory)
        spilled = self._directory.place("spilled")
        self._local = duckdb.connect(config={"memory_limit": f"{_MEMORY_BYTES >> 20}MiB", "temp_directory": spilled})
        self._n_rows = {name: self._count(name) for name in TABLES}
        return self

    def __exit__(self, *_: object) -> None:
        self._local.close()
        self._directory.close()

    def keys(self, *tables: str) -> list[str]:
        """Return the names under which values of some tables were logged, in their order."""
        found: set[str] = set()
        for name in filter(self._n_rows.get, tables):
            query = f"SELECT DISTINCT key FROM {self._directory.rows(f'{name}.parquet')}"
            found |= {key for (key,) in self._local.execute(query).fetchall()}
        return sorted(found)

    def has_restarts(self) -> bool:
        """Return True if a label has more than one attempt."""
        [(last,)] = self._local.execute(
            f"SELECT max(attempt) FROM {self._directory.rows('producers.parquet')}"
        ).fetchall()
        return bool(last)

    def calls(self, *tables: str) -> Iterator[LogCall]:
        """Yield the calls of each label, with the values of some tables."""
        wanted = [name for name in tables if self._n_rows[name]]
        total = sum(self._n_rows[name] for name in wanted)
        rows = heapq.merge(*map(self._rows, wanted), key=_PLACE)
        for (label, attempt, _, _), grouped in groupby(rows, key=_PLACE):
            of_call = list(grouped)
            self._n_read += len(of_call)
            if self._n_read // _FETCHED_ROWS != (self._n_read - len(of_call)) // _FETCHED_ROWS:
                self.on_progress(self._n_read, total)
            values = [(key, value) for *_, key, value in of_call]
            yield LogCall(label, attempt, of_call[0][4], of_call[0][5], values)

    def _count(self, name: str) -> int:
        if not (self.directory / f"{name}.parquet").exists():
            return 0
        [(n,)] = self._local.execute(f"SELECT count(*) FROM {self._directory.rows(f'{name}.parquet')}").fetchall()
        return int(n)

    def _rows(self, name: str) -> Iterator[tuple[Any, ...]]:
        """Yield label, attempt, producer, seq, step, µs, key and value of the rows of a table."""
        columns, make = _TABLES[name]
        cursor = self._local.cursor()  # several tables are read side by side
        cursor.execute(
            f"SELECT label, attempt, producer, seq, step, epoch_us(ts), key, {columns} "
            f"FROM {self._directory.rows(f'{name}.parquet')} ORDER BY label, attempt, producer, seq, key"
        )
        while rows := cursor.fetchmany(_FETCHED_ROWS):
            yield from rows if make is None else ((*row[:7], make(*row[7:])) for row in rows)
