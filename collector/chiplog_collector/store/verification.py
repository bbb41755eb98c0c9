"""Check a store: each file is there and whole, no row is there twice, and each row is among the events that arrived."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from chiplog_collector.store.compaction import Deletion, load_deletions, read_deletions
from chiplog_collector.store.delta_store import DeltaStore, StoredFile, StoreError
from chiplog_collector.store.parquet_files import bounded_engine
from chiplog_collector.store.published_tables import UNOWNED, PublishedTable, live_rows

_INTERVALS = "intervals"


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in a table. faults: one line each. n_deleted: rows that maintenance has not removed yet."""

    table: str
    n_files: int
    n_rows: int
    faults: list[str]
    n_deleted: int = 0


def verify(store: DeltaStore, tables: Sequence[PublishedTable], scratch: Path) -> Iterator[Checked]:
    """Read tables whole and check them. A missing or damaged file is a fault of its own; the rest is checked.

    Args:
        store: The store.
        tables: The tables.
        scratch: A directory on this disk for copies of the files of one table; it is removed.

    Raises:
        StoreError: The store is away.
        OSError: This disk refuses.
    """
    snapshots = {table.name: store.snapshot(table.name) for table in tables}
    intervals = store.snapshot(_INTERVALS)  # last: each piece has them after its events
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "ranges").mkdir(parents=True)
        ranges = store.fetch_all(_INTERVALS, intervals, scratch / "ranges")
        deletions = read_deletions(store, scratch / "deletions")
        for table in tables:
            found = snapshots[table.name]
            faults, n_deleted = _faults(store, table, found, ranges, deletions, scratch / "copies")
            yield Checked(table.name, len(found), sum(file.n_rows for file in found), faults, n_deleted)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _faults(
    store: DeltaStore,
    table: PublishedTable,
    files: Sequence[StoredFile],
    ranges: list[str],
    deletions: Sequence[Deletion],
    copies: Path,
) -> tuple[list[str], int]:
    """Return what is wrong with a table, and the number of its deleted rows. Those count for nothing else."""
    faults, sources, n_deleted = [], [], 0
    copies.mkdir()
    with bounded_engine(copies / "spill") as engine:
        for number, file in enumerate(files):
            target = copies / f"{number}.parquet"
            if fault := _fault_of(engine, store, table.name, file, target):
                faults.append(fault)
            else:
                sources.append(str(target))
        if sources:
            live = "true"
            if deletions and table.name not in UNOWNED:
                load_deletions(engine, deletions)
                live = live_rows(table.name)
            engine.execute("SET VARIABLE sources = CAST(? AS VARCHAR[])", [sources])
            rows = "FROM read_parquet(getvariable('sources'), union_by_name = true, hive_partitioning = false) f"
            engine.execute(f"CREATE VIEW live AS {rows} WHERE {live}")
            [(n_deleted,)] = engine.execute(f"SELECT count(*) {rows} WHERE NOT ({live})").fetchall()
        if sources and table.identity:
            faults += _doubled(engine, table)
            if "seq" in table.identity:
                faults += _unknown(engine, table.name, ranges)
    shutil.rmtree(copies)
    return faults, n_deleted


def _fault_of(
    engine: duckdb.DuckDBPyConnection, store: DeltaStore, table: str, file: StoredFile, target: Path
) -> str | None:
    """Copy a file and read it; return what is wrong with it."""
    try:
        store.fetch(table, file, target)
        [(n_rows,)] = engine.execute("SELECT count(*) FROM read_parquet(?)", [str(target)]).fetchall()
        engine.execute("SELECT max(hash(COLUMNS(*))) FROM read_parquet(?)", [str(target)]).fetchall()  # reads each page
    except (StoreError, duckdb.Error) as error:
        return f"{table}/{file.path} cannot be read: {str(error).partition(chr(10))[0]}"
    return None if n_rows == file.n_rows else f"{table}/{file.path} has {n_rows} rows, and {file.n_rows} were committed"


def _doubled(engine: duckdb.DuckDBPyConnection, table: PublishedTable) -> list[str]:
    identity = ", ".join(table.identity)
    query = f"""SELECT sum(n - 1)::BIGINT FROM (
        SELECT count(*) AS n FROM live WHERE producer IS NOT NULL GROUP BY {identity} HAVING count(*) > 1)"""
    [(n_doubled,)] = engine.execute(query).fetchall()
    return [f"{table.name} has {n_doubled} rows twice, by {identity}"] if n_doubled else []


def _unknown(engine: duckdb.DuckDBPyConnection, table: str, ranges: list[str]) -> list[str]:
    """Return a line if events have rows that did not arrive by the ranges that are published. Ranges may overlap."""
    if not ranges:  # a publisher was killed between two tables of its first piece
        return [f"{table} has events, and no range of seq is published"]
    query = """SELECT count(*) FROM (
            SELECT DISTINCT producer, seq FROM live WHERE producer IS NOT NULL AND seq IS NOT NULL
        ) e ASOF LEFT JOIN (
            SELECT producer, first_seq, max(last_seq) OVER (PARTITION BY producer ORDER BY first_seq) AS last_seq
            FROM read_parquet($ranges)
        ) i ON e.producer = i.producer AND e.seq >= i.first_seq WHERE coalesce(e.seq > i.last_seq, true)"""
    [(n_unknown,)] = engine.execute(query, {"ranges": ranges}).fetchall()
    return [f"{table} has {n_unknown} events that are in no published range of seq"] if n_unknown else []
