"""Views of a store for other engines: the rows of a collector's views, in DuckDB and in Spark."""

import random
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
import sqlglot
from click.testing import CliRunner

from chiplog_client.spark import register_store
from chiplog_collector.store.commands import store as command
from chiplog_collector.store.engine_views import RAN, published_columns, statements
from chiplog_collector.store.published_tables import ENGINES, ORDERS
from chiplog_schemas.model.events import EventKind
from tests.support.changes import deletion, logged
from tests.support.collector_log import START_US, Rank, whole
from tests.support.engine_rows import VIEWS, plain_rows
from tests.support.index import Index
from tests.support.odd_run import odd_run
from tests.support.published_index import publish_in_pieces
from tests.support.safeguard import proves
from tests.support.sample_log import everything, in_blocks, sample_ranks
from tests.support.store_reader import Reader


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, str]]:
    directory = tmp_path_factory.mktemp("published")
    index = Index(directory)
    gone = logged(60, run_id="gone", primary=True, node="g")
    store = publish_in_pieces(
        index, directory / "a lake", [whole(gone), *everything(), *odd_run(), deletion(gone, run="gone")]
    )
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
    return plain_rows(view, names, index.sql(f"SELECT * FROM {view}"))


def spread_over_logs(directory: Path, seed: int) -> tuple[str, dict[str, list[str]]]:
    """Publish a run of two launches with restarts from several logs; return the store, and the rows of a reader.

    Agents that moved have left ranges of seq in two of the logs. The second launch takes over as primary.
    """
    chooser, n_logs = random.Random(seed), 2 + seed % 2
    ranks = sample_ranks(8, chooser)
    ranks[3].say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    for number, restart in ((20, 0), (21, 1)):
        start_us = START_US + number * 1_000_000
        rank = Rank(number, "head", rank=0, launch="two", restart=restart, primary=True, name="two", start_us=start_us)
        rank.log(1, loss=0.25 * number)
        rank.say(EventKind.CONFIG, {"lr": f"0.{number}"})
        ranks.append(rank)
    parts: list[list[bytes]] = [[] for _ in range(n_logs)]
    homes = [number % n_logs for number, _ in enumerate(ranks)]
    homes[5] = homes[2]  # the agent reports the end of this rank
    for home, rank in zip(homes, ranks, strict=True):
        blocks = in_blocks(rank, chooser)
        parts[home] += blocks
        if rank.identity["role"] == "rank" and chooser.random() < 0.6:
            parts[(home + 1) % n_logs] += blocks[chooser.randrange(len(blocks)) :]
    logs = [Index(directory / f"collector {number}", bytes([200 + number]) * 16) for number in range(n_logs)]
    for index, payloads in zip(logs, parts, strict=True):
        url = publish_in_pieces(index, directory / "lake", payloads).url
        index.close()
    reader = Reader(url, directory)
    assert reader.sql("SELECT count(*) > 0 FROM store.held.doubled") == [(True,)]
    assert reader.sql("SELECT primary_label, n_attempts FROM runs") == [("head", 2)]
    rows = {}
    for view in VIEWS:
        names = [name for name, *_ in reader.sql(f"DESCRIBE {view}")]
        rows[view] = plain_rows(view, names, reader.sql(f"SELECT * FROM {view}"))
    reader.close()
    return url, rows


def rows_in_duckdb(url: str) -> dict[str, list[str]]:
    """Return the rows of each view of a store."""
    rows = {}
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        for statement in printed(url, "duckdb"):
            engine.execute(statement)
        for view in VIEWS:
            found = engine.execute(f"FROM {view}")
            rows[view] = plain_rows(view, [name for name, *_ in found.description], found.fetchall())
    return rows


def test_views_in_duckdb_have_the_rows_of_the_collectors_views(published: tuple[Index, str]) -> None:
    index, url = published
    for view, rows in rows_in_duckdb(url).items():
        assert rows == expected(index, view), view
        assert not any("('run_id', 'gone')" in row for row in rows), "it was published, and is deleted"


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


@proves("engines-find-nan", "NaN is found in the views of DuckDB", value='""')
def test_nan_is_found_in_duckdb(tmp_path: Path) -> None:
    rank = Rank(0)
    for step in range(10):
        rank.log(step, loss=float(step) if step % 2 else float("nan"))
    index = Index(tmp_path)
    store = publish_in_pieces(index, tmp_path / "lake", [whole(rank)], 1)
    with duckdb.connect() as engine:
        for statement in printed(store.url, "duckdb"):
            engine.execute(statement)
        for condition in ("isnan(value)", "value > 1e9"):
            assert engine.execute(f"SELECT count(*) FROM metrics WHERE {condition}").fetchall() == [(5,)]
    index.close()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)])
@proves("engines-count-doubled-events-once", "an event that two logs have counts once in other engines", new="pass")
def test_views_of_a_run_in_several_logs_have_the_rows_of_a_reader(tmp_path: Path, seed: int) -> None:
    url, rows = spread_over_logs(tmp_path, seed)
    for view, found in rows_in_duckdb(url).items():
        assert found == rows[view], view


@pytest.mark.full
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)  # three JVMs on busy cores
def test_views_in_spark_have_the_rows_of_the_collectors_views(published: tuple[Index, str], tmp_path: Path) -> None:
    """On the files of the snapshot, in executors of their own: Delta's jar is not in the registry of packages."""
    from pyspark.sql import SparkSession

    index, url = published
    spread_url, spread_rows = spread_over_logs(tmp_path, 1)
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    try:
        for store, rows in ((url, {view: expected(index, view) for view in VIEWS}), (spread_url, spread_rows)):
            register_store(spark, store)
            for view in VIEWS:
                found = spark.sql(f"SELECT * FROM {view}")
                assert plain_rows(view, found.columns, found.collect()) == rows[view], view
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
