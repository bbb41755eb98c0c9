"""What other engines read of a store: one file of each table, for the encoding, and the views, row by row."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from tests.bench.figure import Figure
from tests.bench.lake.environment import ENGINES, ROOT, SPARK_3, prepare
from tests.bench.lake.in_engine import digest
from tests.support.engine_rows import VIEWS
from tests.support.index import Index
from tests.support.odd_run import FINITE, VALUES, odd_run
from tests.support.published_index import publish_in_pieces
from tests.support.s3_server import BUCKET, s3_server
from tests.support.sample_log import everything

_NAMES = {"pyarrow": "pyarrow", "polars": "polars", "datafusion": "DataFusion", "clickhouse": "ClickHouse in chdb"}


def measure() -> Iterator[Figure]:
    engines, spark_3 = prepare("engines", ENGINES), prepare("spark3", SPARK_3)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with _published(root / "all", str(root / "all" / "lake"), VALUES) as (store, views):
            files = _files_in_duckdb(store)
            for engine, name in _NAMES.items():
                found = _in_engine(engines, engine, store)
                yield _equal(f"{name} {found['version']}: a file of each table", files, found["files"])
            found = _in_engine(spark_3, "spark 3", store)
            yield _equal(f"Spark {found['version']}: a file of each table", files, found["files"])
            yield _equal(f"Spark {found['version']}: views, from the files", views, found["views"])
            found = _in_engine(engines, "sail", store)
            name = f"Sail {found['version']}, client {found['client']}"
            yield _equal(f"{name}: views, also infinities, NaN and -0.0", views, found["created"], is_goal=False)
        with _published(root / "finite", str(root / "finite" / "lake"), FINITE) as (store, views):
            yield from _sail(engines, store, views, "a disk")
        with s3_server(_made(root / "server")) as variables:
            os.environ.update(variables)
            with _published(root / "bucket", f"s3://{BUCKET}/runs", FINITE) as (store, views):
                yield from _sail(engines, store, views, "S3")


def _sail(python: str, store: dict[str, Any], views: dict[str, str], place: str) -> Iterator[Figure]:
    found = _in_engine(python, "sail", store)
    yield _equal(f"Sail {found['version']}: views on {place}, CREATE TABLE … USING delta", views, found["created"])
    yield _equal(f'Sail {found["version"]}: views on {place}, format("delta")', views, found["format"])


@contextmanager
def _published(
    directory: Path, lake: str, values: tuple[float, ...]
) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Publish runs; yield what engines are given, and the digests of the collector's views."""
    index = Index(_made(directory))
    try:
        store = publish_in_pieces(index, lake if "://" in lake else Path(lake), [*everything(), *odd_run(values)])
        command = [sys.executable, "-m", "chiplog_collector.store.commands", "spark-tables", store.url]
        given = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        views = {view: digest(view, _collectors(index, view)) for view in VIEWS}
        yield given | {"url": store.url}, views
    finally:
        index.close()


def _collectors(index: Index, view: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    return [name for name, *_ in index.sql(f"DESCRIBE {view}")], index.sql(f"SELECT * FROM {view}")


def _files_in_duckdb(store: dict[str, Any]) -> dict[str, str]:
    digests = {}
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        for name, table in store["tables"].items():
            found = engine.execute("SELECT * FROM read_parquet(?, hive_partitioning = false)", [table["files"][0]])
            digests[name] = digest(name, ([column for column, *_ in found.description], found.fetchall()))
    return digests


def _in_engine(python: str, engine: str, store: dict[str, Any]) -> dict[str, Any]:
    """Return what a process of an engine printed last."""
    command = [python, "-m", "tests.bench.lake.in_engine", engine]
    environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(store), capture_output=True, text=True, env=environ)
    if done.returncode:
        raise RuntimeError(f"{engine}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _equal(name: str, wanted: dict[str, str], found: dict[str, str], *, is_goal: bool = True) -> Figure:
    """Return how many have the same rows; the others are named."""
    others = [key for key, value in wanted.items() if found.get(key) != value]
    yardstick = f"DuckDB {duckdb.__version__}: {len(wanted)}" + (f"; others: {', '.join(others)}" if others else "")
    equal = len(wanted) - len(others)
    return Figure(
        name, equal, f"of {len(wanted)} alike", at_least=len(wanted) if is_goal else None, yardstick=yardstick
    )


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
