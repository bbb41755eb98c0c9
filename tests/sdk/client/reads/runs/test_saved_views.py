"""Views and queries that people saved on the page."""

import duckdb
import pytest

from chiplog_client.client import Client
from chiplog_client.reads.runs.saved_views import describe_view, read_saved_views
from tests.support.run_builder import RunBuilder


def fill(database: duckdb.DuckDBPyConnection) -> None:
    build = RunBuilder(database)
    build.saved_view("runs/lr", {"query": "filter=lr%3C1"})
    build.saved_view("sql/all", {"query": "FROM runs"})


def test_views_are_listed_by_the_beginning_of_their_names(client: Client) -> None:
    assert [(row["name"], row["view"]) for row in read_saved_views(client)] == [
        ("runs/lr", {"query": "filter=lr%3C1"}),
        ("sql/all", {"query": "FROM runs"}),
    ]
    assert [row["name"] for row in read_saved_views(client, "sql/")] == ["sql/all"]


@pytest.mark.parametrize(
    ("name", "view", "found"),
    [
        ("runs/lr", {"query": "filter=lr%3C1"}, ("runs", None, "lr", "#/runs?filter=lr%3C1")),
        ("runs/all", {}, ("runs", None, "all", "#/runs")),
        ("run/a%2Fb/wide", {"tab": "curves", "query": "x=time"}, ("run", "a/b", "wide", "#/run/RUN/curves?x=time")),
        ("run/p/old", {}, ("run", "p", "old", None)),
        ("sql/a/b", {"query": "FROM runs"}, ("sql", None, "a/b", "#/sql?q=FROM%20runs")),
        ("sql/x", ["no object"], ("sql", None, "x", None)),
        ("mine", {}, ("", None, "mine", None)),
    ],
)
def test_a_view_has_the_address_of_the_page(name: str, view: object, found: tuple[str | None, ...]) -> None:
    assert tuple(describe_view({"name": name, "view": view}).values()) == found
