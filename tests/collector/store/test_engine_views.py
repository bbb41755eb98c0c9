"""Views of a store for other engines: the rows of a collector's views, in DuckDB and in Spark."""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlglot
from click.testing import CliRunner

from chiplog_client.spark import register_store
from chiplog_collector.store.commands import store as command
from chiplog_collector.store.engine_views import RAN, published_columns, statements
from chiplog_collector.store.published_tables import ENGINES, ORDERS
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, Rank, whole
from tests.support.index import Index
from tests.support.published_index import publish_in_pieces
from tests.support.sample_log import everything

# By view: its columns of JSON, which is text in a store.
VIEWS: dict[str, tuple[str, ...]] = {
    "runs": (),
    "labels": (),
    "metrics": (),
    "phases": (),
    "texts": (),
    "histograms": (),
    "console": (),
    "system": (),
    "system_samples": (),
    "config": ("value",),
    "run_tags": (),
    "metric_definitions": (),
    "keys": (),
    "summary": ("value",),
    "events": ("body",),
    "files": (),
    "completeness": (),
    "step_skew": (),
    "stragglers": (),
}
ODD = 'it\'s "a/b\\c"\n😀 %_!*'
VALUES = (math.nan, math.inf, -math.inf, -0.0, 2.0**53, 2.0**53 + 2, -(2.0**60), 1e-300, 1.7e308, 0.1)


def odd_run() -> list[Any]:
    """Return payloads of a run whose names, numbers, steps and attempts are unusual."""
    ranks = [
        Rank(20 + n, f"{ODD}{n}", run_id=ODD, rank=n, primary=n == 0, launch="odd", node="node-ö", gpus=[f"GPU-o{n}"])
        for n in range(4)
    ]
    again = Rank(30, f"{ODD}1", run_id=ODD, rank=1, launch="odd", restart=1, start_us=START_US + 500_000, node="node-ö")
    nameless = Rank(31, "helper", run_id=ODD, rank=None, launch="odd", node="node-ö", primary=False)
    for n, rank in enumerate((*ranks, again, nameless)):
        for at, value in enumerate(VALUES):
            step = 5 * (at - len(VALUES) // 2)
            rank.log(step, **{f"{ODD}/one": value, "turned": VALUES[(at + n) % len(VALUES)]})
            rank.log(step, **{f"only/{n}/{at}": value})
        for step in (-(2**63), -7, -1, 0, 2**53 + 1, 2**63 - 1):
            rank.log(step, far=float(n))
            rank.say(EventKind.PHASES, step, pack([ODD, "data"]), struct.pack("<2d", n / 8, 0.25))
            if n == 2:  # parts of one step
                rank.say(EventKind.PHASES, step, pack([ODD]), struct.pack("<1d", 0.125))
        rank.say(EventKind.PHASES, 1, pack(["odd values"]), struct.pack("<1d", VALUES[n]))
        rank.say(EventKind.TEXT, -1, ODD, f"{ODD} {n}")
        rank.say(EventKind.CONSOLE, 1, 1, ODD)
        rank.say(EventKind.CONFIG, {ODD: json.dumps(ODD), "list": "[1e400, null]", "shared": "1"})
        rank.say(EventKind.CONFIG_HASHES, 1, {f"{ODD}{key}": f"{key}{n if n else ''}" for key in range(25)})
        rank.say(EventKind.SUMMARY, {"far": json.dumps({"n": n}), ODD: json.dumps(ODD)})
        rank.say(EventKind.FILE, f"{ODD}.pt", 2**53 + 1, bytes([n]) * 32)
        rank.say(EventKind.FILE, "mlflow/model.pt", 10, b"\x09" * 32)
        rank.say(EventKind.TAG, f"chiplog:param/{ODD}", "first")
        rank.say(EventKind.TAG, f"chiplog:param/own {n}", f"{ODD}\t\x01\x7f")
        rank.say(EventKind.NOTICE, "alert", "warning", ODD, {"text": ODD})
    ranks[0].say(EventKind.DEFINE, "only/*", {"summary": "mean"})
    ranks[0].say(EventKind.DEFINE, "only/?/3", {"summary": "max"})
    ranks[0].say(EventKind.DEFINE, "only/0/4", {"summary": "min"})
    ranks[1].say(EventKind.DEFINE, "t*", {"summary": "first", "hidden": True})
    ranks[2].say(EventKind.DEFINE, "turned", {"summary": "none"})
    ranks[3].say(EventKind.DEFINE, "it's \"a/b?c*%_!*/one", {"summary": "max"})
    ranks[3].say(EventKind.STATE, {"state": "failed", "exit_code": 3, "reason": ODD})
    agent = Rank(32, label="agent", role="agent", pid=9, node="node-ö", run_id=None)
    for step in range(10):
        for device in ("", "GPU-o0", "GPU-o1", "GPU-free", "pid:120", "pid:121", "pid:130"):
            keys = pack(["hw.power", ODD])
            agent.say(
                EventKind.SYSTEM, device, keys, struct.pack("<2d", step, VALUES[step]), ts=START_US + step * 90_000
            )
    agent.say(EventKind.LOST, ranks[2].uuid, 3000, 3050, ODD)
    agent.say(EventKind.LOST, ranks[2].uuid, 4000, 4050, "disk")
    single = [Rank(40 + n, run_id=f"single {n}", project=ODD, launch=f"s{n}", primary=True, node="s") for n in range(3)]
    for n, rank in enumerate(single):
        rank.log(0, loss=VALUES[n])
    return [*map(whole, (*ranks, again, nameless, agent, *single)), (Kind.STORED, pack([b"S" * 16, b"\x09" * 32, 10]))]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, str]]:
    directory = tmp_path_factory.mktemp("published")
    index = Index(directory)
    # Without the last record, which deletes a run: deletions do not reach a store.
    store = publish_in_pieces(index, directory / "a lake", [*everything()[:-1], *odd_run()])
    yield index, store.url
    index.close()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Index]:
    """The index of another collector."""
    (tmp_path / "second").mkdir()
    index = Index(tmp_path / "second", b"M" * 16)
    yield index
    index.close()


def printed(url: str, engine: str) -> list[str]:
    found = CliRunner().invoke(command, ["views", url, "--for", engine])
    assert found.exit_code == 0, found.output
    return [line for line in found.output.split(";\n") if line.strip() and not line.startswith("--")]


def expected(index: Index, view: str) -> list[str]:
    names = [name for name, *_ in index.sql(f"DESCRIBE {view}")]
    return sorted(plain(view, names, row) for row in index.sql(f"SELECT * FROM {view}"))


def plain(view: str, names: list[str], row: Any) -> str:
    """Return a row as text: by column, times without a zone, lists as such, JSON as what it says."""
    return repr([(name, compared(value, name in VIEWS[view])) for name, value in zip(names, row, strict=True)])


def compared(value: Any, is_json: bool) -> Any:
    if is_json and value is not None:
        return json.loads(value)
    if hasattr(value, "tzinfo"):
        return value.replace(tzinfo=None)
    return list(value) if isinstance(value, list | tuple) else value


def rows_in_duckdb(url: str) -> dict[str, list[str]]:
    """Return the rows of each view of a store."""
    rows = {}
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        for statement in printed(url, "duckdb"):
            engine.execute(statement)
        for view in VIEWS:
            found = engine.execute(f"FROM {view}")
            names = [name for name, *_ in found.description]
            rows[view] = sorted(plain(view, names, row) for row in found.fetchall())
    return rows


def test_views_in_duckdb_have_the_rows_of_the_collectors_views(published: tuple[Index, str]) -> None:
    index, url = published
    for view, rows in rows_in_duckdb(url).items():
        assert rows == expected(index, view), view


def test_views_have_the_rows_of_each_log(tmp_path: Path, second: Index) -> None:
    first, lake = Index(tmp_path), tmp_path / "lake"
    publish_in_pieces(first, lake, odd_run())
    store = publish_in_pieces(second, lake, everything()[:-1])
    for view, rows in rows_in_duckdb(store.url).items():
        assert rows == sorted(expected(first, view) + expected(second, view)), view
    first.close()


def test_of_a_producer_in_two_logs_the_row_of_the_later_piece_counts(tmp_path: Path, second: Index) -> None:
    first, lake, rank = Index(tmp_path), tmp_path / "lake", Rank(1, primary=True)
    rank.log(0, loss=1.0)
    filler = [whole(Rank(50 + n, run_id=f"other {n}")) for n in range(5)]
    publish_in_pieces(first, lake, [*filler, whole(rank)])  # its numbers are the larger ones
    rank.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    store = publish_in_pieces(second, lake, [whole(rank)], n_pieces=1)
    [found] = [row for row in rows_in_duckdb(store.url)["labels"] if "('run_id', 'r')" in row]
    assert "('state', 'finished')" in found
    first.close()


@pytest.mark.full
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)  # three JVMs on busy cores
def test_views_in_spark_have_the_rows_of_the_collectors_views(published: tuple[Index, str]) -> None:
    """On the files of the snapshot, in executors of their own: Delta's jar is not in the registry of packages."""
    from pyspark.sql import SparkSession

    index, url = published
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    try:
        register_store(spark, url)
        for view in VIEWS:
            found = spark.sql(f"SELECT * FROM {view}")
            assert sorted(plain(view, found.columns, row) for row in found.collect()) == expected(index, view), view
    finally:
        spark.stop()


@pytest.mark.parametrize("engine", ENGINES)
def test_statements_are_valid_in_the_dialect_of_each_engine(published: tuple[Index, str], engine: str) -> None:
    _, url = published
    found = printed(url, engine)
    for statement in found:
        assert len(sqlglot.parse(statement, dialect=engine)) == 1
    assert len([statement for statement in found if " VIEW " in statement]) >= len(VIEWS) + 2
    output = CliRunner().invoke(command, ["views", url, "--for", engine]).output
    assert output.startswith("-- parsed, and not run in ") == (engine not in RAN)


def test_databricks_gets_external_tables_of_other_names_than_its_views(published: tuple[Index, str]) -> None:
    found = printed(published[1], "databricks")
    tables = [statement for statement in found if statement.startswith("CREATE TABLE")]
    names = {statement.split()[5] for statement in tables}
    assert f"CREATE TABLE IF NOT EXISTS store_metrics USING DELTA LOCATION '{published[1]}/metrics'" in tables
    assert names.isdisjoint(statement.split()[4] for statement in found if " VIEW " in statement)


def test_tables_that_a_store_lacks_are_empty_in_its_views() -> None:
    with duckdb.connect() as engine:
        for statement in statements("duckdb", "s3://lake", {}):
            engine.execute(statement)
        for view in VIEWS:
            assert engine.execute(f"FROM {view}").fetchall() == []


def test_the_columns_of_each_table_are_those_that_are_published(published: tuple[Index, str]) -> None:
    from deltalake import DeltaTable

    columns = published_columns()
    assert set(columns) == set(ORDERS)
    for table in ORDERS:
        if DeltaTable.is_deltatable(f"{published[1]}/{table}"):
            fields = DeltaTable(f"{published[1]}/{table}").schema().fields
            assert [field.name for field in fields] == [*columns[table], "day"], table
