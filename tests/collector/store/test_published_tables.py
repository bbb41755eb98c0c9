"""The tables of a store: every table of the index that holds what was logged is published, under names alone."""

import duckdb
import pytest

from chiplog_collector.store.published_tables import PUBLISHED, PublishedTable, published_query, rows_of
from chiplog_schemas.sql import rollups_sql, series_sql, tables_sql

# What a store does without: what is computed from the rest, belongs to one index, or is private to its collector.
UNPUBLISHED = {
    "deleted",
    "demands",
    "dropped",
    "identified",
    "metric_levels",
    "metric_series",  # published as sums over each piece
    "orphans",
    "phase_series",
    "position",
    "quarantine",
    "receipt_days",
    "refused",
    "rollups",
    "saved_views",
}


@pytest.fixture(scope="module")
def index() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(tables_sql())
    connection.execute(rollups_sql())
    return connection


def test_each_table_of_the_index_is_published_or_named_as_not(index: duckdb.DuckDBPyConnection) -> None:
    query = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'base'"
    tables = {name for (name,) in index.execute(query).fetchall()}
    sources = {source for table in PUBLISHED for source in table.sources}
    assert sources | UNPUBLISHED == tables
    assert not sources & UNPUBLISHED


@pytest.mark.parametrize("table", PUBLISHED, ids=[table.name for table in PUBLISHED])
def test_a_published_row_names_its_log_its_piece_and_nothing_by_an_integer_of_the_index(
    index: duckdb.DuckDBPyConnection, table: PublishedTable
) -> None:
    rows = rows_of(table)
    given = {"after": -1} if table.is_dimension else {"after": -1, "until": 9}
    types = dict(index.execute(f"SELECT column_name, column_type FROM (DESCRIBE {rows})", given).fetchall())
    query = published_query(table, types, series_sql(rows) if table.is_series else rows)
    found = dict(
        index.execute(
            f"SELECT column_name, column_type FROM (DESCRIBE {query})", {**given, "log": "", "until": 9}
        ).fetchall()
    )
    assert list(found)[:2] == ["log", "number"]
    assert not set(found) & {"flush", "run", "uuid"}
    names = {"producer", "key", "device", "owner", "alias_of", "run_id", "label"} & set(found)
    assert {found[name] for name in names} <= {"VARCHAR"}
    kinds = {"BIGINT", "BOOLEAN", "DOUBLE", "DOUBLE[]", "INTEGER", "TIMESTAMP WITH TIME ZONE", "VARCHAR", "VARCHAR[]"}
    assert set(found.values()) <= kinds
