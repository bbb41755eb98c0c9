"""Views are made where a database lacks them, and made again after a change of what they are made of."""

from collections.abc import Iterator

import duckdb
import pytest

from chiplog_collector import view_definitions
from chiplog_collector.view_definitions import define_views
from tests.support.safeguard import proves

STATEMENTS = [
    "CREATE SCHEMA IF NOT EXISTS reads",
    "CREATE OR REPLACE VIEW reads.state AS SELECT 1 AS n",
    "CREATE OR REPLACE VIEW found AS SELECT 'made' AS text",
]


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with the views, one of which was changed since."""
    with duckdb.connect() as connection:
        define_views(connection, STATEMENTS)
        assert found(connection) == "made"
        connection.execute("CREATE OR REPLACE VIEW found AS SELECT 'kept' AS text")
        yield connection


def found(connection: duckdb.DuckDBPyConnection) -> str:
    [(text,)] = connection.execute("SELECT text FROM found").fetchall()
    return str(text)


def test_views_that_a_database_has_are_not_made_again(connection: duckdb.DuckDBPyConnection) -> None:
    define_views(connection, STATEMENTS)
    assert found(connection) == "kept"


@proves("changed-views-made-again", "views are made again after a change of their text", value='"of any text"')
def test_views_with_another_text_are_made_again(connection: duckdb.DuckDBPyConnection) -> None:
    define_views(connection, [*STATEMENTS, "CREATE OR REPLACE VIEW more AS SELECT 1"])
    assert found(connection) == "made"


def test_views_over_other_tables_are_made_again(connection: duckdb.DuckDBPyConnection) -> None:
    define_views(connection, STATEMENTS, "tables of another number")
    assert found(connection) == "made"


@pytest.mark.parametrize("name", ["__version__", "MIGRATION", "ROLLUPS"])
def test_views_of_another_version_are_made_again(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(view_definitions, name, "another")
    define_views(connection, STATEMENTS)
    assert found(connection) == "made"


def test_views_that_a_version_without_this_note_has_replaced_are_made_again(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    connection.execute(STATEMENTS[1])
    define_views(connection, STATEMENTS)
    assert found(connection) == "made"
