"""Views of a store for other engines: the rows of a collector's views, in DuckDB and in Spark."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import duckdb
import pytest
import sqlglot
from click.testing import CliRunner

from chiplog_collector.store.commands import store as command
from chiplog_collector.store.engine_views import RAN, statements, views
from chiplog_collector.store.published_tables import ENGINES, PUBLISHED
from tests.support.index import Index
from tests.support.published_index import publish_in_pieces
from tests.support.sample_log import everything

# By view: the columns that a store does without.
VIEWS = {
    "runs": "",
    "labels": "",
    "metrics": "",
    "phases": "",
    "texts": "",
    "histograms": "",
    "console": "",
    "system_samples": "",
    "config": "",
    "completeness": "reasons",
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, str]]:
    directory = tmp_path_factory.mktemp("published")
    index = Index(directory)
    # Without the last record, which deletes a run: deletions do not reach a store.
    store = publish_in_pieces(index, directory / "a lake", everything()[:-1])
    yield index, store.url
    index.close()


def printed(url: str, engine: str) -> list[str]:
    found = CliRunner().invoke(command, ["views", url, "--for", engine])
    assert found.exit_code == 0, found.output
    return [line for line in found.output.split(";\n") if line.strip() and not line.startswith("--")]


def expected(index: Index, view: str) -> list[str]:
    lacking = f"EXCLUDE ({VIEWS[view]})" if VIEWS[view] else ""
    return sorted(map(plain, index.sql(f"SELECT * {lacking} FROM {view}")))


def plain(row: Any) -> str:
    """Return a row as text: times without a zone, lists as such."""
    return repr([value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value for value in map(listed, row)])


def listed(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def test_views_in_duckdb_have_the_rows_of_the_collectors_views(published: tuple[Index, str]) -> None:
    index, url = published
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        for statement in printed(url, "duckdb"):
            engine.execute(statement)
        for view in VIEWS:
            assert sorted(map(plain, engine.execute(f"FROM {view}").fetchall())) == expected(index, view), view


@pytest.mark.full
def test_views_in_spark_have_the_rows_of_the_collectors_views(published: tuple[Index, str]) -> None:
    """On the files of the snapshot: Delta's jar is not in the registry of packages."""
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    index, url = published
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    try:
        tables = [table.name for table in PUBLISHED if DeltaTable.is_deltatable(f"{url}/{table.name}")]
        for table in tables:
            files = map(unquote, DeltaTable(f"{url}/{table}").file_uris())
            spark.read.parquet(*files).createOrReplaceTempView(f"store_{table}")
        for statement in views("spark", dict.fromkeys(tables)):
            spark.sql(statement)
        for view in VIEWS:
            assert sorted(map(plain, spark.sql(f"SELECT * FROM {view}").collect())) == expected(index, view), view
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


def test_a_view_whose_tables_a_store_lacks_is_left_out() -> None:
    found = list(statements("duckdb", "s3://lake", {"runs": ["s3://lake/runs/a.parquet"], "producers": ["b"]}))
    names = [statement.split(" AS ")[0].rpartition(" ")[2] for statement in found]
    assert names == ["store_runs", "store_producers", "store_names", "runs"]
