"""The query of `chiplog runs`: only what is asked for, values as parameters, and names of columns."""

from datetime import datetime

import click
import duckdb
import pytest

from chiplog.cli.runs_query import (
    COLUMNS,
    SPARK_BUCKETS,
    SPARKLINES,
    Selection,
    build_query,
    keyed,
    parse_columns,
    parse_since,
    parse_sort,
)
from tests.support.hand_written import compute_rollups, create_tables

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


# The sparkline of each run from all its values.
FROM_FACTS = f"""
WITH points AS (SELECT run_id, step, value FROM metrics WHERE key = 'loss'),
spans AS (SELECT run_id, min(step) AS least, max(step) - min(step) + 1 AS steps FROM points GROUP BY run_id)
SELECT run_id, (step - least) * {SPARK_BUCKETS} // steps AS bucket,
       coalesce(avg(value) FILTER (NOT isnan(value)), 'nan') AS value
FROM points JOIN spans USING (run_id) GROUP BY ALL
"""


@pytest.mark.parametrize("recent", [False, True], ids=["sorted", "with recent rows"])
def test_sparklines_of_any_length_agree_with_all_values(recent: bool) -> None:
    """A part has whole buckets of the curves at lower resolution: so each value is in the same part."""
    database = duckdb.connect()
    create_tables(database)
    database.execute("INSERT INTO base.names VALUES (1, 'loss'), (2, 'other')")
    lengths = {1: 48, 2: 24 * 8 * 16, 3: 24 * 8 * 256, 4: 7}
    for run, steps in lengths.items():
        database.execute("INSERT INTO base.runs (run, run_id, tags) VALUES (?, ?, [])", [run, f"r{run}"])
        for label in (0, 1):
            producer = 10 * run + label
            database.execute(
                "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank) "
                f"VALUES ({producer}, 'rank', {run}, 'rank{label}', 0, {label == 0}, {label})"
            )
            # The sixth part is NaN, and every tenth value; -256 is a whole number of buckets.
            database.execute(
                f"INSERT INTO base.metrics SELECT {producer}, key, s, s - 256, now(), CASE WHEN s * 24 // {steps} = 5 "
                f"OR s % 10 = 3 THEN 'nan' ELSE sin(s) + {label} END FROM range({steps}) t(s), range(1, 3) u(key)"
            )
    if recent:
        late = "FROM base.metrics WHERE seq % 7 = 0"
        database.execute(f"INSERT INTO base.metrics_recent {late}")
        database.execute(f"DELETE {late}")
    compute_rollups(database)
    found = database.execute(SPARKLINES, {"key": "loss", "runs": ["r1", "r2", "r3", "r4"]}).fetchall()
    expected = {(run, bucket): value for run, bucket, value in database.execute(FROM_FACTS).fetchall()}
    assert {(run, bucket): value for run, bucket, value in found} == pytest.approx(expected, nan_ok=True)
    assert sum(value != value for value in expected.values()) >= 3
