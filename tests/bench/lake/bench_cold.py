"""Queries of rows that are only in files of a store, beside the same rows in DuckDB; in pieces, and merged.

`CHIPLOG_BENCH_LARGE_RUNS` sets how many runs of 16 million points there are.
"""

import contextlib
import os
import statistics
import tempfile
import time
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
    def count(table: str, files: object):  # type: ignore[no-untyped-def]
        listed = list(files)  # type: ignore[call-overload]
        counted.append(len(listed))
        with opened(table, listed) as paths:
            yield paths

    local.opened = count  # type: ignore[method-assign,assignment]
    try:
        ask_cold(reader, relations, query)
    finally:
        local.opened = opened  # type: ignore[method-assign]
    return sum(counted)


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
                hot = median_ms(ask_hot, database.connection, query)
                cold = median_ms(ask_cold, reader, relations, query)
                n_files = files_opened(reader, relations, query)
                yardstick = f"{cold:.1f} ms, files: {n_files}; in DuckDB {hot:.1f} ms"
                most = pieces if place == "in pieces" else merged
                figures.append(Figure(f"{name}, {place}", cold / hot, "times", at_most=most, yardstick=yardstick))
        reader.close()
        database.close()
    return figures
