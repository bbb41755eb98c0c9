"""The query of `chiplog runs`: only what is asked for, values as parameters, and names of columns."""

from datetime import datetime

import click
import pytest

from chiplog_cli.runs_query import (
    COLUMNS,
    Selection,
    build_query,
    keyed,
    parse_columns,
    parse_since,
    parse_sort,
)

NOW = datetime(2026, 1, 2, 12)


def test_a_query_counts_only_what_is_asked_for():
    query, params = build_query(Selection(["run_id", "state"]))
    assert params == {"limit": 50}
    assert "completeness" not in query and "config" not in query
    assert "completeness" in build_query(Selection(["complete"]))[0]
    query, params = build_query(Selection(["config.lr", "summary.loss"]))
    assert [name for name in params.values() if isinstance(name, str)] == ["lr", "loss"]


def test_values_are_parameters_and_a_key_with_quotes_is_a_name():
    evil = """x' OR "1" = '1"""
    selection = Selection([f"config.{evil}"], evil, evil, evil, [evil], [evil], NOW, f"summary.{evil}")
    query, params = build_query(selection)
    assert query.replace('AS "config.x\' OR ""1"" = \'1"', "").count("OR") == query.count("ORDER") + query.count(" FOR")
    assert list(params.values()).count(evil) == 7


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


def test_only_config_and_summary_have_keys():
    assert keyed("config.a.b") == ("config", "a.b") and keyed("summary.x") == ("run_summary", "x")
    assert not any(map(keyed, COLUMNS))


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
