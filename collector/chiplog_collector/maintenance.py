"""Rewrite the DuckDB file: rebuild it from the log, or compact it. The caller holds the collector's lock.

Both write a new file next to the old one first. If the disk refuses, the new file is removed and the old one stays.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
import duckdb
from rich.console import Console
from rich.progress import Progress

from chiplog_collector.index.fact_tables import BY_SERIES, ORDERS
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.index.opening import move_to_quarantine, rebuild_into, restore_series
from chiplog_collector.memory_limit import limit_memory
from chiplog_collector.receiver.lost_tail import append_receipt_for_lost_tail
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.view_definitions import define_views
from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.limit_settings import read_limits
from chiplog_schemas.paths import Paths
from chiplog_schemas.sql import SERIES, rollups_sql, tables_sql, views_sql
from chiplog_schemas.storage.segment_format import log_owner
from chiplog_schemas.storage.segment_log import SegmentLog

_ORDERS = ORDERS | {"texts": BY_SERIES, "histograms": BY_SERIES}


class MaintenanceError(click.ClickException):
    """The new file could not be written. The text has the reason, and states that the old file is unchanged."""


def rebuild(place: Paths) -> str:
    """Rebuild the database from the log and replace the old one; return a line about it.

    Raises MaintenanceError.
    """
    directory = place.collector / "log"
    identifier = log_owner(directory)
    if identifier is None:
        return f"{directory} holds no log; nothing to rebuild"
    log = SegmentLog(directory, identifier)
    try:
        append_receipt_for_lost_tail(log)  # safeguard: rebuild-declares-lost-tail
        limit = log.next_number
    finally:
        log.close()
    console = Console(stderr=True)
    kept: Path | None = None
    with (
        _replacement(place.index, "rebuilding") as target,
        Progress(transient=True, console=console, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("rebuilding", total=limit)
        follower = rebuild_into(place, target, limit, lambda number: progress.update(task, completed=number))
        left = _restore_series(place, follower)
        follower.database.close()
        refusal = _accept_store(place, limit, follower.missed_ends)
        if follower.first_damage and _stored(place.index) > _stored(target):  # safeguard: fuller-database-kept
            kept = move_to_quarantine(place.index)
    line = f"{place.index} rebuilt from {follower.records_read:,} records"
    if follower.first_damage:
        line += f"; {follower.n_damages_read} damaged or missing stretches of the log are reported in the view events: "
        line += follower.first_damage
        line += f"; the previous file is kept as {kept.name}" if kept else ""
    return line + left + refusal


def _restore_series(place: Paths, follower: LogFollower) -> str:
    """Complete the rollups of facts that the log no longer has; return what is left to do. Raises OSError."""
    if not follower.database.lacks_series:
        return ""
    published = Outbox(place.store).published()
    url = os.environ.get("CHIPLOG_STORE") or (published.url if published is not None else "")
    if not url:
        return "; its first days are in a store alone: start the collector with --store to complete it"
    restore_series(follower, place, url)
    return ""


def _accept_store(place: Paths, limit: int, missed_ends: Sequence[int]) -> str:
    """Note that flushes end where the pieces in the store do: what follows can be published. Return why not, else ''.

    limit: the number after the last record of the log; what was written since the store was last asked may be other
    records than it has. missed_ends: ends of pieces in the store that are none here.
    """
    outbox = Outbox(place.store)
    published = outbox.published()
    if published is None or not published.is_foreign:
        return ""
    first = outbox.unconfirmed()
    limit = limit if first is None else min(limit, first)  # safeguard: unconfirmed-records-are-others
    # safeguard: diverged-log-stays-unpublished
    if missed_ends or max(published.positions.values(), default=-1) >= limit:
        return f"; {published.url} has other records of this log, so nothing is published there: name another store"
    outbox.set_published(replace(published, is_foreign=False))
    return ""


def compact(place: Paths) -> str:
    """Copy the database, facts sorted by run, key, label and step, into a file without free space; return a line.

    Uses as much memory as the index may use for queries, and spills next to the file. Raises MaintenanceError.
    """
    if not place.index.exists():
        return f"{place.index} does not exist; nothing to compact"
    before = _size(place.index)
    with _replacement(place.index, "compacting") as target:
        _copy_sorted(place.index, target)
    return f"{place.index}: {before:,} bytes before, {_size(place.index):,} after"


def _copy_sorted(path: Path, target: Path) -> None:
    connection = duckdb.connect(str(path))
    try:
        connection.execute(f"SET enable_progress_bar = {sys.stdout.isatty()}")
        # safeguard: compaction-memory-bounded
        limit_memory(connection, read_limits(os.environ).query_memory_bytes)  # above the limit the sort spills to disk
        connection.execute(f"ATTACH '{str(target).replace(chr(39), chr(39) * 2)}' AS target")
        connection.execute("USE target")
        connection.execute(tables_sql())
        source = path.stem
        tables = connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = 'target' AND schema_name = 'base'"
        ).fetchall()
        names = {name for (name,) in tables}
        for table in sorted(names):
            rows, order = f'{source}.base."{table}"', ""
            if table.endswith("_recent"):
                continue
            if f"{table}_recent" in names:
                rows = f'(FROM {rows} UNION ALL FROM {source}.base."{table}_recent")'
            if table in _ORDERS:
                runs = f"(SELECT producer, run FROM {source}.base.producers)"
                order = f"LEFT JOIN {runs} p USING (producer) ORDER BY {_ORDERS[table]}"
            connection.execute(f'INSERT INTO target.base."{table}" SELECT f.* FROM {rows} f {order}')
        connection.execute(rollups_sql())
        # safeguard: compaction-keeps-series
        if connection.execute("SELECT count(flush) FROM base.dropped").fetchall() != [(0,)]:
            for series in SERIES.values():
                connection.execute(f"DELETE FROM base.{series}")
                connection.execute(f"INSERT INTO base.{series} FROM {source}.base.{series} ORDER BY key, producer")
        define_views(connection, [views_sql()])
        connection.execute(f"USE {source}")
        connection.execute("DETACH target")
    finally:
        connection.close()


@contextlib.contextmanager
def _replacement(path: Path, word: str) -> Iterator[Path]:
    """Yield the name of a file to create, then replace `path` by it. Raises MaintenanceError when that fails."""
    target = path.with_name(f"{path.stem}-{word}.duckdb")
    try:
        _remove(target)
        yield target
        Path(f"{path}.wal").unlink(missing_ok=True)
        sync_directory(path.parent)  # else a power failure may leave the old write-ahead log next to the new file
        os.replace(target, path)
        sync_directory(path.parent)
    except (duckdb.Error, OSError) as error:  # safeguard: duckdb-write-error-one-line
        with contextlib.suppress(OSError):  # safeguard: failed-database-removed
            _remove(target)
        reason = str(error).partition("\n")[0]
        raise MaintenanceError(f"{word} {path} failed: {reason}; the existing file is unchanged") from error


def _remove(path: Path) -> None:
    for suffix in ("", ".wal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _stored(path: Path) -> int:
    """Return how many events a database holds; 0 when it cannot be read."""
    try:
        with duckdb.connect(str(path), read_only=True) as connection:
            row = connection.execute("SELECT sum(stored) FROM completeness").fetchone()
    except duckdb.Error:
        return 0
    return int(row[0] or 0) if row else 0


def _size(path: Path) -> int:
    return path.stat().st_size
