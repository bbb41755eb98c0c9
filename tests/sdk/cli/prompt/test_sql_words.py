"""Words of SQL at the prompt: where a query ends, and what may come next."""

import pytest

from chiplog_cli.prompt.sql_words import SHOWN_MAX, Catalog, is_complete, suggestions

CATALOG = Catalog(
    views={"runs": ["run_id", "state"], "metrics": ["run_id", "key", "step", "value"]},
    macros={"history": ["run", "key"], "downsample": ["run", "keys", "points"]},
    runs=["gpt-2", "gpt-1", "it's"],
    keys=["train/loss", "lr"],
)


@pytest.mark.parametrize(
    ("text", "is_end"),
    [
        ("SELECT 1;", True),
        ("SELECT 1 ;  \n", True),
        ("SELECT 1; -- done", True),
        ("SELECT 1; /* done */", True),
        ("SELECT ';", False),
        ("SELECT 'it''s;", False),
        ('SELECT ";', False),
        ("SELECT 1 -- more;", False),
        ("SELECT 1 /* more;", False),
        ("SELECT ';' || ';'", False),
        ("SELECT ';';", True),
        ("SELECT 1", False),
        ("", False),
    ],
)
def test_a_query_ends_with_a_semicolon_outside_of_strings_and_comments(text, is_end):
    assert is_complete(text) is is_end


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("FROM m", ["metrics"]),
        ("SELECT * FROM ", ["runs", "metrics", "history(", "downsample("]),
        ("SELECT * FROM runs JOIN met", ["metrics"]),
        ("DESCRIBE ru", ["runs"]),
        ("FROM hist", ["history("]),
        ("FROM metrics WHERE ", ["run_id", "key", "step", "value"]),
        ("FROM metrics WHERE st", ["step"]),
        ("FROM runs WHERE st", ["state"]),
        ("FROM metrics m WHERE m.", ["run_id", "key", "step", "value"]),
        ("FROM runs WHERE run_id = 'gpt", ["gpt-2'", "gpt-1'"]),
        ("FROM runs WHERE run_id IN ('gpt-1', 'g", ["gpt-2'", "gpt-1'"]),
        ("FROM metrics WHERE key = '", ["train/loss'", "lr'"]),
        ("FROM metrics WHERE key = 'loss", ["train/loss'"]),
        ("FROM history('", ["gpt-2'", "gpt-1'", "it''s'"]),
        ("FROM history('gpt-1', '", ["train/loss'", "lr'"]),
        ("FROM downsample('gpt-1', ['tr", ["train/loss'"]),
        ("FROM runs WHERE run_id = 'it''", ["it''s'"]),
        ("FROM runs WHERE state = 'r", []),
        ("SELECT 1 -- fro", []),
        ("SELECT 'done' fr", ["FROM"]),
    ],
)
def test_views_columns_macros_runs_and_keys_are_suggested_where_they_belong(text, names):
    found = [suggestion.text for suggestion in suggestions(text, CATALOG)]
    assert found[: len(names)] == names if names else found == []


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("FROM met", "FROM metrics"),
        ("FROM metrics WHERE key = 'lo", "FROM metrics WHERE key = 'train/loss'"),
        ("FROM runs WHERE run_id = 'it''", "FROM runs WHERE run_id = 'it''s'"),
        ("select run", "select run_id"),
    ],
)
def test_a_suggestion_takes_the_place_of_what_is_typed(text, completed):
    first = suggestions(text, CATALOG)[0]
    assert text[: len(text) - first.replaced] + first.text == completed


def test_suggestions_are_bounded_and_an_unknown_catalog_has_only_keywords():
    many = Catalog(runs=[f"run-{number}" for number in range(10_000)])
    assert len(suggestions("FROM runs WHERE run_id = '", many)) == SHOWN_MAX
    assert suggestions("FROM ", Catalog()) == []
    assert [suggestion.text for suggestion in suggestions("SEL", Catalog())] == ["SELECT"]
