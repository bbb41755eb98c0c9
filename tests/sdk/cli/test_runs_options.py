"""The options of `chiplog runs`: names of columns, what to sort by, since when, and a view that the page saved."""

from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode

import click
import pytest

from chiplog_cli.runs_options import (
    COLUMNS,
    TableOptions,
    asked_columns,
    of_view,
    options_of_view,
    parse_columns,
    parse_since,
    parse_sort,
)
from chiplog_client.reads.runs.runs_query import VIEW_COLUMNS
from tests.support.hand_written import filled
from tests.support.run_builder import RunBuilder

NOW = datetime(2026, 1, 2, 12)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("run_id, state", ["run_id", "state"]),
        ("run,group,tries,started,took", ["run_id", "run_group", "attempts", "created_at", "duration_s"]),
        ("config.a.b,summary.train/loss,", ["config.a.b", "summary.train/loss"]),
    ],
)
def test_columns_have_names_and_headings(text, columns):
    assert parse_columns(text) == columns


def test_no_column_is_refused():
    with pytest.raises(click.UsageError, match="--columns ' , ' names no column"):
        parse_columns(" , ")


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


def test_a_saved_view_has_the_options_of_the_table(tmp_path: Path) -> None:
    views = {
        "runs/plain": {"query": "filter=lr%3C1+-tag%3Aold&sort=-duration"},
        "runs/keys": {"query": urlencode([("config", "a,b"), ("summary", "loss"), ("curve", "loss"), ("sort", "x.y")])},
        "runs/columns": {"query": "column=name&column=n_failed&column=of_another_version&sort=complete"},
        "runs/broken": ["no object"],
        "sql/keys": {"query": "FROM runs"},
    }
    with filled(
        tmp_path, lambda database: [RunBuilder(database).saved_view(*view) for view in views.items()]
    ) as client:
        assert options_of_view(client, "plain") == TableOptions(None, "-duration_s", "lr<1 -tag:old")
        found = options_of_view(client, "runs/keys")
        assert found.columns is not None and found.columns[:2] == ["run_id", "name"]
        assert found.columns[-2:] == ["config.a,b", "summary.loss"]
        assert (found.sort, found.sparkline) == (None, "loss")
        assert options_of_view(client, "columns") == TableOptions(["run_id", "name", "failed"])
        assert options_of_view(client, "broken") == TableOptions()
        with pytest.raises(click.UsageError, match="view 'plian' of the runs is unknown; did you mean 'plain'"):
            options_of_view(client, "plian")


def test_options_win_over_those_of_a_view_and_both_filters_hold() -> None:
    view = TableOptions(["run_id"], "-lr", "state:failed", "loss")
    assert TableOptions().or_of(view) == view
    given = TableOptions(["state"], "lr", "gpt", "acc")
    assert given.or_of(view) == TableOptions(["state"], "lr", "state:failed gpt", "acc")
