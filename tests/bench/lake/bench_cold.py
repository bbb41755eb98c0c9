"""Queries of rows that are only in files of a store, beside the same rows in DuckDB; in pieces, and merged.

Times are CPU seconds of this process, user and system, of queries in turns: the machine may have other work.

`CHIPLOG_BENCH_LARGE_RUNS` sets how many runs of 16 million points there are.
"""

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb

from chiplog_collector.index.database import Database
from chiplog_collector.query.cold_needs import Relations, needs, read_relations
from chiplog_collector.query.query_references import References
from chiplog_collector.query.sql_guard import check_query
from chiplog_collector.spanning.cold_files import ColdFiles
from chiplog_collector.store.compaction import compact
from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.piece_cutter import PieceCutter
from chiplog_collector.store.published_tables import ORDERS
from chiplog_collector.store.publisher import Publisher
from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from chiplog_schemas.sql import views_sql
from tests.bench.figure import Figure
from tests.bench.large_store import write_store
from tests.support.store_reader import Reader

LARGE_RUNS = int(os.environ.get("CHIPLOG_BENCH_LARGE_RUNS", "1"))
SMALL_RUNS = 500
LOG_ID = b"B" * 16
REPEATS = 15
_admitted: dict[str, References] = {}
# By name: the query, and how many times as long as in DuckDB it may take merged and in pieces.
QUERIES = {
    "a series of a label": (
        "SELECT step, value FROM metrics WHERE run_id = 'large-0' AND label = 'rank3' AND key = 'train/metric_7'",
        2,
        5,
    ),
    "a series of 64 ranks": (
        "SELECT step, min(value), avg(value), max(value) FROM metrics "
        "WHERE run_id = 'large-0' AND key = 'train/metric_7' GROUP BY step",
        2,
        5,
    ),
    "a small run": ("SELECT step, key, value FROM metrics WHERE run_id = 'small-77'", 5, 5),
    "the table of runs": ("SELECT run_id, state, n_labels FROM runs", 1.3, 1.3),
    "a summary": ("SELECT label, key, value FROM summary WHERE run_id = 'large-0'", 1.3, 1.3),
    "the progress of ranks": ("FROM rank_progress WHERE run_id = 'large-0'", 1.3, 1.3),
    "completeness": ("FROM completeness WHERE run_id = 'large-0'", 1.3, 1.3),
}


def median_ms(ask: object, *arguments: object) -> float:
    took = []
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        ask(*arguments)  # type: ignore[operator]
        took.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(took[1:])


@dataclass(frozen=True)
class Cost:
    """Medians of one query, in milliseconds."""

    wall_ms: float
    cpu_ms: float


def in_turns(*asks: Callable[[], object]) -> list[Cost]:
    """Return what each call costs, one after the other in each turn."""
    spent: list[list[tuple[float, float]]] = [[] for _ in asks]
    for turn in range(REPEATS + 1):
        for ask, times in zip(asks, spent, strict=True):
            wall, cpu = time.perf_counter(), time.process_time()
            ask()
            if turn:
                times.append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)))
    return [Cost(*(statistics.median(column) for column in zip(*times, strict=True))) for times in spent]


def publish(database: Database, directory: Path) -> DeltaStore:
    """Publish a database to a store on this disk."""
    url, outbox = f"file://{directory}/lake", Outbox(directory / "outbox")
    store = DeltaStore(url, LOG_ID.hex())
    publisher = Publisher(store, outbox, LOG_ID.hex(), None)
    publisher.begin()
    cutter = PieceCutter(database.connection, LOG_ID, outbox, url)
    cutter.start()
    cutter.close()
    while publisher.publish_next():
        pass
    store.put_heartbeat({"host": "bench"})
    return store


def ask_hot(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    return len(connection.execute(query).fetchall())


def ask_cold(reader: Reader, relations: Relations, query: str) -> int:
    if query not in _admitted:  # as a collector does: a text is parsed once
        _admitted[query] = check_query(query, reader.cursor)
    return len(reader.sql(query, needs(_admitted[query], None, relations)))


def files_opened(reader: Reader, relations: Relations, query: str) -> int:
    """Return how many files a query opens."""
    counted: list[int] = []
    local = reader.store.cold._files
    opened = local.opened

    @contextlib.contextmanager
    def count(table: str, files: object, *rest: object):  # type: ignore[no-untyped-def]
        listed = list(files)  # type: ignore[call-overload]
        counted.append(len(listed))
        with opened(table, listed, *rest) as paths:
            yield paths

    local.opened = count  # type: ignore[method-assign,assignment]
    try:
        ask_cold(reader, relations, query)
    finally:
        local.opened = opened  # type: ignore[method-assign]
    return sum(counted)


def _at_its_collector(database: Database, directory: Path, url: str, relations: Relations) -> Iterator[Figure]:
    """Yield what a collector's queries cost while no other publishes to its store: rollups, then dropped facts."""
    database.checkpoint()
    (directory / "own").mkdir()
    reader = Reader(url, directory / "own", database.connection, LOG_ID.hex())
    with duckdb.connect() as beside:  # the same database without a store
        shutil.copy(directory / "index.duckdb", directory / "copy.duckdb")
        beside.execute(f"ATTACH '{directory}/copy.duckdb' AS copied (READ_ONLY); USE copied; SET TimeZone = 'UTC'")
        disable_faulty_optimizers(beside)
        for name, (query, most, _) in sorted(QUERIES.items(), key=lambda item: item[1][1] >= 2):
            if most >= 2 and database.dropped < 0:
                database.drop_facts(reader.store.cold.snapshot.until)
                database.checkpoint()
            hot, cold = in_turns(partial(ask_hot, beside, query), partial(ask_cold, reader, relations, query))
            yardstick = f"{cold.cpu_ms:.1f} ms of CPU ({cold.wall_ms:.1f} ms); in DuckDB {hot.cpu_ms:.1f}"
            ratio = cold.cpu_ms / hot.cpu_ms
            yield Figure(f"{name}, at its collector", ratio, "times", at_most=most, yardstick=yardstick)
    reader.close()


def measure() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root)
        write_store(directory / "index.duckdb", LOG_ID, LARGE_RUNS, SMALL_RUNS, is_numbered=True)
        database = Database(directory / "index.duckdb", LOG_ID)
        disable_faulty_optimizers(database.connection)
        [(n_points,)] = database.connection.execute("SELECT count(*) FROM base.metric_facts").fetchall()
        store = publish(database, directory)
        reader = Reader(store.url, directory)
        relations = read_relations(reader.cursor, views_sql())
        assert isinstance(reader.store.cold, ColdFiles)
        for place in ("in pieces", "merged"):
            if place == "merged":
                for table, order in ORDERS.items():
                    while compact(store, table, order, directory / "scratch", pieces_min=2):
                        pass
                reader.store._look_at = 0.0
                reader.store.refresh()
            n_bytes = sum(file.size_bytes for file in store.snapshot("metrics"))
            most = 5.5 if place == "in pieces" else 5
            figures.append(Figure(f"bytes a point, {place}", n_bytes / n_points, "B", at_most=most))
            for name, (query, merged, pieces) in QUERIES.items():
                assert ask_cold(reader, relations, query) == ask_hot(database.connection, query), query
                hot, cold = in_turns(
                    partial(ask_hot, database.connection, query), partial(ask_cold, reader, relations, query)
                )
                n_files = files_opened(reader, relations, query)
                yardstick = (
                    f"{cold.cpu_ms:.1f} ms of CPU ({cold.wall_ms:.1f} ms), files: {n_files}; "
                    f"in DuckDB {hot.cpu_ms:.1f} ({hot.wall_ms:.1f})"
                )
                most = pieces if place == "in pieces" else merged
                ratio = cold.cpu_ms / hot.cpu_ms
                figures.append(Figure(f"{name}, {place}", ratio, "times", at_most=most, yardstick=yardstick))
        n_files = len(store.snapshot("metrics"))
        figures.append(Figure(f"files of {SMALL_RUNS + LARGE_RUNS + 1} runs", n_files, "files", at_most=5))
        reader.close()
        figures += _at_its_collector(database, directory, store.url, relations)
        database.close()
    return figures
