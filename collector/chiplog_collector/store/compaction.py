"""Rewrite the files of a table: merge pieces into larger files in the same order, or leave out what was deleted.

A new file has rows of one log. Sorting is done slice by slice, a range of the first columns of the order at a time, so
memory stays bounded.
"""

import bisect
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from chiplog_collector.store.delta_store import DeltaStore, StoredFile, StoreError
from chiplog_collector.store.parquet_files import bounded_engine, row_count, write_rows
from chiplog_collector.store.published_tables import DELETIONS, UNOWNED, live_rows

PIECES_MAX = 200  # half an hour of pieces: what a reader opens at most for one day that is not compacted
SLICE_ROWS = 4_000_000  # of a new file: some 16 MB, sorted within the memory of one engine; readers fetch files whole
# A file is merged with smaller ones that have a quarter of its rows together. So a row is rewritten a few times, not
# with each merge, as in the tiers of a log-structured merge tree; https://doi.org/10.1007/s002360050048 has the sums.
_LARGER_MAX = 4
REWRITTEN_BYTES = 1 << 30  # of the files that one commit rewrites because of deletions
_SLICED_BY = 3  # columns: run, key and producer of a series
_ALL = "true"  # the condition that a row stays
_DELETION_TYPES = {
    "log": "VARCHAR",
    "number": "BIGINT",
    "producer": "VARCHAR",
    "run_id": "VARCHAR",
    "samples_until": "TIMESTAMP WITH TIME ZONE",
    "is_request": "BOOLEAN",
}

Slice = tuple[tuple[str, ...], tuple[str, ...]]  # the first and the last group in it


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one turn did to a table."""

    table: str
    day: str
    n_pieces: int
    n_files: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class Deletion:
    """A row of the table `deletions`: see `live_rows` for what it concerns."""

    log: str
    number: int
    producer: str | None
    run_id: str | None
    samples_until: Any
    is_request: bool


def compact(
    store: DeltaStore, table: str, order: tuple[str, ...], scratch: Path, *, pieces_min: int = PIECES_MAX
) -> Compacted | None:
    """Compact the pieces of the log and day that have the most, if the table has enough of them.

    Files of that log and day that are less than half full are merged with them. On the newest day, which still
    grows, the larger ones wait until there is more to merge with them.

    Args:
        store: The store.
        table: The table.
        order: The columns by which its files are sorted.
        scratch: A directory on this disk for the pieces and the new files; it is removed.
        pieces_min: How many pieces are worth a turn.

    Raises:
        StoreError: The store is away, or another process has rewritten the table since: nothing has changed.
        OSError: This disk refuses.
    """
    files = store.snapshot(table)
    if sum(file.is_piece for file in files) < pieces_min:
        return None
    groups: dict[tuple[str, str], list[StoredFile]] = defaultdict(list)
    for file in files:
        if file.is_piece or file.n_rows < SLICE_ROWS // 2:
            groups[(file.day, file.log)].append(file)  # safeguard: logs-compacted-apart
    newest = max((file.day for file in files), default="")
    for group in [group for group in groups if group[0] == newest]:
        groups[group] = _smaller(groups[group])  # safeguard: large-file-waits-for-rows
    (day, _), chosen = max(groups.items(), key=lambda group: _worth(group[1]), default=(("", ""), []))
    if not _worth(chosen):
        return None
    with _working(scratch):
        new = _rewritten(store, table, order, chosen, scratch)
        store.replace(table, chosen, new)
        n_rows = sum(file.n_rows for file in chosen)
        return Compacted(table, day, sum(file.is_piece for file in chosen), len(new), n_rows)


def _smaller(files: Sequence[StoredFile]) -> list[StoredFile]:
    """Return the pieces, and the files that have at most _LARGER_MAX times the rows of all that are smaller."""
    chosen: list[StoredFile] = []
    n_rows = 0
    for file in sorted(files, key=lambda file: (not file.is_piece, file.n_rows)):
        if not file.is_piece and file.n_rows > _LARGER_MAX * n_rows:
            break
        chosen.append(file)
        n_rows += file.n_rows
    return chosen


def _worth(files: Sequence[StoredFile]) -> int:
    """Return how many files a merge saves at least; 0 if it is not worth a commit."""
    n_pieces = sum(file.is_piece for file in files)
    is_one = sum(file.n_rows for file in files) <= SLICE_ROWS  # of the merge: else small files may stay as many
    return len(files) if len(files) > 1 and (n_pieces or is_one) else 0


# -- deletions --


def read_deletions(store: DeltaStore, scratch: Path) -> list[Deletion]:
    """Return what was deleted in any log. Raises StoreError, OSError."""
    files = store.snapshot(DELETIONS)
    if not files:
        return []
    columns = ", ".join(_DELETION_TYPES)
    with _working(scratch), bounded_engine(scratch / "spill") as engine:
        sources = store.fetch_all(DELETIONS, files, scratch)
        query = f"SELECT {columns} FROM read_parquet($sources, union_by_name = true, hive_partitioning = false)"
        return [Deletion(*row) for row in engine.execute(query, {"sources": sources}).fetchall()]


def delete_rows(
    store: DeltaStore,
    table: str,
    order: tuple[str, ...],
    deletions: Sequence[Deletion],
    scratch: Path,
    checked: set[str] | None = None,
) -> int | None:
    """Rewrite the files of a table that have deleted rows, of one log and as many as one commit takes.

    What was carried out is noted in the table, so that no file is read again for it.

    Args:
        store: The store.
        table: The table.
        order: The columns by which its files are sorted.
        deletions: What was deleted.
        scratch: A directory for copies, which is removed.
        checked: Files that were read and have no deleted row; it grows. The same set for calls that follow another.

    Returns:
        The number of the files that were replaced; None if there was nothing to look for. Else call it again.

    Raises:
        StoreError: The store is away, or another process has rewritten the table since: nothing has changed.
        OSError: This disk refuses.
    """
    checked = set() if checked is None else checked
    files = store.snapshot(table) if deletions and table not in UNOWNED else []
    if not files:
        return None
    done = {log: store.deleted_until(table, log) for log in {deletion.log for deletion in deletions}}
    due = _Due(table, [deletion for deletion in deletions if deletion.number > done[deletion.log]])
    concerned: dict[tuple[str, str], list[StoredFile]] = defaultdict(list)
    for file in files:
        if file.path not in checked and (log := due.log_of(file)):
            concerned[(log, file.day)].append(file)
    if not concerned:
        return None
    (log, _), chosen = min(concerned.items())
    is_last = sum(group == log for group, _ in concerned) == 1
    n_bytes = 0
    for n_chosen, file in enumerate(chosen):
        n_bytes += file.size_bytes
        if n_bytes > REWRITTEN_BYTES and n_chosen:
            chosen, is_last = chosen[:n_chosen], False
            break
    with _working(scratch):
        old: list[StoredFile] = []
        new: list[Path] = []
        for file in chosen:
            place = scratch / str(len(old))
            place.mkdir()
            rewritten = [] if due.is_whole(file) else _rewritten(store, table, order, [file], place, due.deletions)
            if sum(map(row_count, rewritten)) < file.n_rows:
                old.append(file)
                new += rewritten
            else:
                checked.add(file.path)
                shutil.rmtree(place)
        until = {log: max(deletion.number for deletion in due.deletions if deletion.log == log)} if is_last else {}
        if old or is_last:
            store.replace(table, old, new, is_change=True, deleted=until)
        return len(old)


class _Due:
    """The deletions that a table does not reflect yet, and which files they may concern, by their ranges of columns."""

    def __init__(self, table: str, deletions: Sequence[Deletion]) -> None:
        self.deletions = deletions
        self._column = "run_id" if table == "runs" else "producer"
        self._is_samples = table == "system"
        named: dict[str, dict[str, int]] = defaultdict(dict)
        self._samples: dict[str, list[tuple[Any, int]]] = defaultdict(list)
        for deletion in deletions:
            name = deletion.producer
            if table == "runs":
                name = deletion.run_id if deletion.producer is None else None
            if name is not None:
                named[deletion.log][name] = max(deletion.number, named[deletion.log].get(name, -1))
            if deletion.samples_until is not None:
                self._samples[deletion.log].append((deletion.samples_until, deletion.number))
        self._named = named
        self._sorted = {log: sorted(names) for log, names in named.items()}

    def log_of(self, file: StoredFile) -> str:
        """Return the log of which a file may have deleted rows; empty if it has none."""
        if self.is_whole(file):
            return file.log
        logs = file.ranges.get("log", ("", ""))
        for log, names in self._sorted.items():
            if logs[0] <= log <= logs[1]:
                first, last = file.ranges.get(self._column, ("", ""))
                earliest = file.ranges.get("number", (-1, -1))[0]
                found = names[bisect.bisect_left(names, first) : bisect.bisect_right(names, last)]
                if any(self._named[log][name] > earliest for name in found):
                    return log
        return ""

    def is_whole(self, file: StoredFile) -> bool:
        """Return True if all rows of a file are samples that are too old: others of its day may be, and wait."""
        if not self._is_samples or "ts" not in file.ranges or "number" not in file.ranges:
            return False
        newest, last = _utc(file.ranges["ts"][1]), file.ranges["number"][1]
        return any(_utc(until) > newest and number > last for until, number in self._samples.get(file.log, ()))


def _utc(time: Any) -> float:
    return float(time.timestamp())


# -- new files --


@contextmanager
def _working(scratch: Path) -> Iterator[None]:
    """Have an empty directory for as long as the block runs."""
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        yield
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _rewritten(
    store: DeltaStore,
    table: str,
    order: tuple[str, ...],
    files: Sequence[StoredFile],
    scratch: Path,
    deletions: Sequence[Deletion] = (),
) -> list[Path]:
    """Return new files on this disk with the rows of files, sorted, without those that are deleted."""
    sources = store.fetch_all(table, files, scratch)
    with bounded_engine(scratch / "spill") as engine:
        live = _ALL
        if deletions:
            load_deletions(engine, deletions)
            live = live_rows(table)
        rows = f"FROM read_parquet($sources, union_by_name = true, hive_partitioning = false) f WHERE {live}"
        texts = ", ".join(f"coalesce({column}::VARCHAR, '')" for column in order[:_SLICED_BY])
        group = f"[{texts}]"
        new: list[Path] = []
        n_written = n_read = 0
        for first, last in slices(engine, f"SELECT {group}, count(*) {rows} GROUP BY ALL ORDER BY ALL", sources):
            given = {"sources": sources, "first": list(first), "last": list(last)}
            query = f"{rows} AND {group} BETWEEN $first AND $last ORDER BY {', '.join(order)}"
            new.append(scratch / f"new-{len(new)}.parquet")
            write_rows(engine.sql(query, params=given), new[-1])
            n_written += row_count(new[-1])
        if deletions:
            [(n_read,)] = engine.execute(f"SELECT count(*) {rows}", {"sources": sources}).fetchall()
    expected = n_read if deletions else sum(file.n_rows for file in files)
    if n_written != expected:  # safeguard: compaction-keeps-each-row
        raise StoreError(f"{table}: {n_written} rows were merged of {expected}; nothing is changed")
    return new


def load_deletions(engine: duckdb.DuckDBPyConnection, deletions: Sequence[Deletion]) -> None:
    """Make the table `deletions` of an engine."""
    columns = ", ".join(f"{name} {kind}" for name, kind in _DELETION_TYPES.items())
    engine.execute(f"CREATE TABLE {DELETIONS} ({columns})")
    columns = ", ".join(f"unnest(?::{kind}[])" for kind in _DELETION_TYPES.values())
    given = [[getattr(deletion, name) for deletion in deletions] for name in _DELETION_TYPES]
    engine.execute(f"INSERT INTO {DELETIONS} SELECT {columns}", given)


def slices(engine: duckdb.DuckDBPyConnection, counted: str, sources: list[str]) -> list[Slice]:
    """Return ranges of groups, in order, each of at most SLICE_ROWS rows or of one group.

    counted: the query of each group, a list of texts, with the number of its rows, in order.
    """
    found: list[Slice] = []
    n_rows = SLICE_ROWS
    for group, n in engine.execute(counted, {"sources": sources}).fetchall():
        bound = tuple(group)
        if n_rows + n > SLICE_ROWS:
            found.append((bound, bound))
            n_rows = 0
        found[-1] = (found[-1][0], bound)
        n_rows += n
    return found
