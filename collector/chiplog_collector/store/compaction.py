"""Merge the pieces of a table into larger files, in the same order: a series is then in one file in place of hundreds.

Sorting is done slice by slice, a range of the first columns of the order at a time, so memory stays bounded.
"""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import duckdb

from chiplog_collector.store.delta_store import DeltaStore, StoredFile, StoreError
from chiplog_collector.store.parquet_files import bounded_engine, row_count, write_rows

PIECES_MAX = 200  # half an hour of pieces: what a reader opens at most for one day that is not compacted
SLICE_ROWS = 4_000_000  # of a new file: some 16 MB, sorted within the memory of one engine
_SLICED_BY = 3  # columns: run, key and producer of a series

Slice = tuple[tuple[str, ...], tuple[str, ...]]  # the first and the last group in it


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one turn did to a table."""

    table: str
    day: str
    n_pieces: int
    n_files: int
    n_rows: int


def compact(
    store: DeltaStore, table: str, order: tuple[str, ...], scratch: Path, *, pieces_min: int = PIECES_MAX
) -> Compacted | None:
    """Compact the pieces of the day that has the most, if the table has enough of them.

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
    pieces = [file for file in store.snapshot(table) if file.is_piece]
    if len(pieces) < pieces_min:
        return None
    [(day, n_pieces)] = Counter(file.day for file in pieces).most_common(1)
    chosen = [file for file in pieces if file.day == day]
    if n_pieces < 2:
        return None
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        new = _merged(store, table, order, chosen, scratch)
        store.replace(table, chosen, new)
        return Compacted(table, day, n_pieces, len(new), sum(file.n_rows for file in chosen))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _merged(
    store: DeltaStore, table: str, order: tuple[str, ...], pieces: list[StoredFile], scratch: Path
) -> list[Path]:
    """Return new files on this disk with the rows of pieces, sorted."""
    sources = store.fetch_all(table, pieces, scratch)
    with bounded_engine(scratch / "spill") as engine:
        rows = "FROM read_parquet($sources, union_by_name = true, hive_partitioning = false)"
        texts = ", ".join(f"coalesce({column}::VARCHAR, '')" for column in order[:_SLICED_BY])
        group = f"[{texts}]"
        new: list[Path] = []
        n_written = 0
        for first, last in slices(engine, f"SELECT {group}, count(*) {rows} GROUP BY ALL ORDER BY ALL", sources):
            given = {"sources": sources, "first": list(first), "last": list(last)}
            query = f"{rows} WHERE {group} BETWEEN $first AND $last ORDER BY {', '.join(order)}"
            new.append(scratch / f"new-{len(new)}.parquet")
            write_rows(engine.sql(query, params=given), new[-1])
            n_written += row_count(new[-1])
    expected = sum(file.n_rows for file in pieces)
    if n_written != expected:  # safeguard: compaction-keeps-each-row
        raise StoreError(f"{table}: {n_written} rows were merged of {expected}; nothing is changed")
    return new


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
