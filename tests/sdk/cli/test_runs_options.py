"""The options of `chiplog runs`: names of columns, what to sort by, and since when."""

from datetime import datetime

import click
import pytest

from chiplog_cli.runs_options import COLUMNS, asked_columns, of_view, parse_columns, parse_since, parse_sort
from chiplog_client.reads.runs.runs_query import VIEW_COLUMNS

NOW = datetime(2026, 1, 2, 12)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("run_id, state", ["run_id", "state"]),
        ("run,group,tries,started,took", ["run_id", "run_group", "attempts", "created_at", "duration_s"]),
        ("config.a.b,summary.train/loss,", ["config.a.b", "summary.train/loss"]),
        ("", []),
    ],
)
def test_columns_have_names_and_headings(text, columns):
    assert parse_columns(text) == columns


@pytest.mark.parametrize("name", ["", "nope", "config.", "config", "foo.lr"])
def test_an_unknown_column_is_refused(name):
    with pytest.raises(click.UsageError, match="is unknown"):
        parse_sort(name)


def test_columns_of_the_command_are_those_of_the_view() -> None:
    assert asked_columns(["complete", "pending", "labels"]) == ["pending", "lost", "is_over", "n_labels"]
    assert {of_view(name) for name in COLUMNS} >= set(VIEW_COLUMNS)


def test_a_hyphen_asks_for_the_largest_first():
    assert (parse_sort("-took"), parse_sort("summary.-x")) == (("duration_s", True), ("summary.-x", False))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", datetime(2026, 1, 2, 11, 58, 30)),
        ("1.5h", datetime(2026, 1, 2, 10, 30)),
        ("1w", datetime(2025, 12, 26, 12)),
        ("2026-01-01", datetime(2026, 1, 1)),
        ("2026-01-01T05:00+02:00", datetime(2026, 1, 1, 3)),
    ],
)
def test_a_time_may_be_an_age(text, moment):
    assert parse_since(text, NOW, is_local=False) == moment
