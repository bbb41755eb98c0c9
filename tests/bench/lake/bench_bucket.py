"""Queries of a bucket of a thousand files over loopback: a reader without copies, and one that has them."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import obstore
from obstore.store import from_url

from chiplog_collector.index.database import Database
from chiplog_collector.query.cold_needs import read_relations
from chiplog_collector.store.compaction import compact
from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.published_tables import ORDERS
from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from chiplog_schemas.sql import views_sql
from tests.bench.figure import Figure
from tests.bench.lake.bench_cold import (
    LARGE_RUNS,
    LOG_ID,
    QUERIES,
    SMALL_RUNS,
    ask_cold,
    ask_hot,
    files_opened,
    median_ms,
    publish,
)
from tests.bench.large_store import write_store
from tests.support.s3_server import BUCKET, s3_server
from tests.support.store_files import parquet
from tests.support.store_reader import Reader

N_FILES = 1_000
URL = f"s3://{BUCKET}/lake"
OTHER_LOG = "ee" * 16
BARS_MS = {"a series of a label": 400, "a small run": 150}
_OTHER = f"""SELECT '{OTHER_LOG}' AS log, {{number}}::BIGINT AS number, 'other-{{number}}' AS run_id, 'loss' AS key,
    '{{number:032x}}' AS producer, 'rank0' AS label, i AS step, i AS seq, now() AS ts, 0.5 AS value
    FROM range(100) t(i)"""


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root)
        write_store(directory / "index.duckdb", LOG_ID, LARGE_RUNS, SMALL_RUNS, is_numbered=True)
        database = Database(directory / "index.duckdb", LOG_ID)
        disable_faulty_optimizers(database.connection)
        on_disk = publish(database, directory)
        for table, order in ORDERS.items():
            while compact(on_disk, table, order, directory / "scratch", pieces_min=2):
                pass
        (directory / "server").mkdir()
        with s3_server(directory / "server") as variables:
            os.environ.update(variables)
            _upload(Path(on_disk.path))
            n_files = _add_files(directory)
            figures = _figures(database, directory, n_files)
        database.close()
    return figures


def _upload(lake: Path) -> None:
    objects = from_url(URL)
    for path in sorted(path for path in lake.rglob("*") if path.is_file()):
        obstore.put(objects, str(path.relative_to(lake)), path)


def _add_files(directory: Path) -> int:
    """Add files of other runs to the table of metrics, in one commit, up to N_FILES. Return how many it has."""
    store, actions = DeltaStore(URL, OTHER_LOG), []
    for number in range(N_FILES - len(store.snapshot("metrics"))):
        file = parquet(directory / "other.parquet", _OTHER.format(number=number))
        actions.append(store._upload("metrics", f"day=2026-11-28/other-{number}.parquet", file))
    table = store._open("metrics")
    assert table is not None
    store._commit(table, "metrics", actions, {"other": 1})
    store.put_heartbeat({"number": 1, "note": json.dumps(len(actions))})
    return len(store.snapshot("metrics"))


def _figures(database: Database, directory: Path, n_files: int) -> list[Figure]:
    figures = []
    reader = Reader(URL, directory)
    relations = read_relations(reader.cursor, views_sql())

    def without_copies(query: str) -> Callable[[], object]:
        def ask() -> object:
            for path in (directory / "reader" / "copies").glob("*.parquet"):
                path.unlink()
            return ask_cold(reader, relations, query)

        return ask

    for name, bar in BARS_MS.items():
        query = QUERIES[name][0]
        assert ask_cold(reader, relations, query) == ask_hot(database.connection, query), query
        opened = files_opened(reader, relations, query)
        hot = f"in DuckDB {median_ms(ask_hot, database.connection, query):.1f} ms"
        first, again = median_ms(without_copies(query)), median_ms(ask_cold, reader, relations, query)
        figures += [
            Figure(f"{name}, S3, {n_files} files, first time", first, "ms", at_most=bar, yardstick=hot),
            Figure(f"{name}, S3, {n_files} files, again", again, "ms", at_most=bar, yardstick=hot),
            Figure(f"{name}, S3, files opened of {n_files}", opened, "files", at_most=2),
        ]
    reader.close()
    return figures
