"""Rewrite the DuckDB file as a whole: rebuild it from the log, or compact it. The caller holds the collector's lock."""

import os
from pathlib import Path

import duckdb
from rich.console import Console
from rich.progress import Progress

from chiplog_collector.index import catch_up
from chiplog_schemas.places import Places
from chiplog_schemas.segments import SegmentLog, log_owner
from chiplog_schemas.tables import tables_sql, views_sql

_FACTS = ("metrics", "phases", "texts", "histograms")


def rebuild(place: Places) -> str:
    """Make the database anew from the log and put it in place of the old one; return a line about it."""
    directory = place.collector / "log"
    identifier = log_owner(directory)
    if identifier is None:
        return f"{directory} holds no log; nothing to rebuild"
    log = SegmentLog(directory, identifier)
    limit = log.next_number
    log.close()
    target = _fresh(place.index, "rebuilding")
    console = Console(stderr=True)
    with Progress(transient=True, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("rebuilding", total=limit)
        database = catch_up(place, target, limit, lambda number: progress.update(task, completed=number))
    database.close()
    _replace(target, place.index)
    return f"{place.index} rebuilt from {limit} records"


def compact(place: Places) -> str:
    """Copy the database, facts sorted by run, key, label and step, into a file without free space; return a line."""
    if not place.index.exists():
        return f"{place.index} does not exist; nothing to compact"
    before = _size(place.index)
    target = _fresh(place.index, "compacting")
    connection = duckdb.connect(str(place.index))
    try:
        connection.execute(f"ATTACH '{str(target).replace(chr(39), chr(39) * 2)}' AS target")
        connection.execute("USE target")
        connection.execute(tables_sql())
        connection.execute(views_sql())
        source = place.index.stem
        tables = connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = 'target' AND schema_name = 'base'"
        ).fetchall()
        for (table,) in tables:
            order = ""
            if table in _FACTS:
                run = f"(SELECT p.run FROM {source}.base.producers p WHERE p.producer = f.producer)"
                order = f"ORDER BY {run}, key, producer, step, seq"
            elif table == "system":
                order = "ORDER BY key, device, ts"
            connection.execute(f'INSERT INTO target.base."{table}" SELECT * FROM {source}.base."{table}" f {order}')
        connection.execute(f"USE {source}")
        connection.execute("DETACH target")
    finally:
        connection.close()
    _replace(target, place.index)
    return f"{place.index}: {before:,} bytes before, {_size(place.index):,} after"


def _fresh(path: Path, word: str) -> Path:
    target = path.with_name(f"{path.stem}-{word}.duckdb")
    for suffix in ("", ".wal"):
        Path(f"{target}{suffix}").unlink(missing_ok=True)
    return target


def _replace(target: Path, path: Path) -> None:
    Path(f"{path}.wal").unlink(missing_ok=True)
    os.replace(target, path)


def _size(path: Path) -> int:
    return path.stat().st_size
