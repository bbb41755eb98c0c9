"""How many runs there are, and names to choose from."""

from chiplog_client.client import Client
from chiplog_client.reads.runs.known_names import count_runs, read_known_names, read_view_columns
from tests.support.tabled_runs import fill_tabled_runs

fill = fill_tabled_runs


def test_names_of_most_runs_come_first(client: Client) -> None:
    assert read_known_names(client) == {
        "config": ["lr", "name", "sizes"],
        "summary": ["loss", 'a "quoted" key', "best", "note", "step"],
        "curve": ["loss", 'a "quoted" key', "step"],
    }


def test_runs_are_counted(client: Client) -> None:
    assert count_runs(client) == 3


def test_views_have_their_columns_in_order_and_internal_tables_are_missing(client: Client) -> None:
    found = read_view_columns(client)
    assert found["run_summary"] == ["run_id", "key", "value"]
    assert "metrics" in found and "producers" not in found
