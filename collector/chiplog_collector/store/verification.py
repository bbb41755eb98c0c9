"""Check a store: each file is there and whole, no row is there twice, and each row is among the events that arrived."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import duckdb

from chiplog_collector.store.delta_store import DeltaStore, StoredFile, StoreError
from chiplog_collector.store.published_tables import PublishedTable

MEMORY_BYTES = 1 << 30  # more is sorted on the disk
_INTERVALS = "intervals"


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in a table. faults: one line each."""

    table: str
    n_files: int
    n_rows: int
    faults: list[str]


def verify(store: DeltaStore, table: PublishedTable, scratch: Path) -> Checked:
    """Read a table whole and check it. A file that is missing or damaged is a fault of its own; the rest is checked.

    Args:
        store: The store.
        table: The table.
        scratch: A directory on this disk for copies of its files; it is removed.

    Raises:
        StoreError: The store is away.
        OSError: This disk refuses.
    """
    found, faults, sources = store.snapshot(table.name), [], []
    intervals = store.snapshot(_INTERVALS)
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        with duckdb.connect(
            config={"memory_limit": f"{MEMORY_BYTES}B", "temp_directory": str(scratch / "spill")}
        ) as engine:
            for number, file in enumerate(found):
                target = scratch / f"{number}.parquet"
                if fault := _fault_of(engine, store, table.name, file, target):
                    faults.append(fault)
                else:
                    sources.append(str(target))
            if sources and table.identity:
                faults += _doubled(engine, table, sources)
                if "seq" in table.identity:
                    faults += _unknown(engine, store, table.name, sources, intervals, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Checked(table.name, len(found), sum(file.n_rows for file in found), faults)


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


def _doubled(engine: duckdb.DuckDBPyConnection, table: PublishedTable, sources: list[str]) -> list[str]:
    identity = ", ".join(table.identity)
    query = f"""SELECT sum(n - 1)::BIGINT FROM (
        SELECT count(*) AS n FROM read_parquet(?) WHERE producer IS NOT NULL GROUP BY {identity} HAVING count(*) > 1)"""
    [(n_doubled,)] = engine.execute(query, [sources]).fetchall()
    return [f"{table.name} has {n_doubled} rows twice, by {identity}"] if n_doubled else []


def _unknown(
    engine: duckdb.DuckDBPyConnection,
    store: DeltaStore,
    table: str,
    sources: list[str],
    intervals: list[StoredFile],
    scratch: Path,
) -> list[str]:
    """Return a line if events have rows that did not arrive by the ranges that are published. Ranges may overlap."""
    known = []
    for number, file in enumerate(intervals):
        known.append(str(scratch / f"interval-{number}.parquet"))
        store.fetch(_INTERVALS, file, Path(known[-1]))
    query = """SELECT count(*) FROM (
            SELECT DISTINCT producer, seq FROM read_parquet($sources) WHERE producer IS NOT NULL AND seq IS NOT NULL
        ) e ASOF LEFT JOIN (
            SELECT producer, first_seq, max(last_seq) OVER (PARTITION BY producer ORDER BY first_seq) AS last_seq
            FROM read_parquet($known)
        ) i ON e.producer = i.producer AND e.seq >= i.first_seq WHERE coalesce(e.seq > i.last_seq, true)"""
    [(n_unknown,)] = engine.execute(query, {"sources": sources, "known": known}).fetchall()
    return [f"{table} has {n_unknown} events that are in no published range of seq"] if n_unknown else []
