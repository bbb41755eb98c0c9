"""Sparklines of runs, from all values and from curves at lower resolution."""

from pathlib import Path

import pytest

from chiplog_client.reads.runs.run_sparklines import sparklines_sql
from tests.support.hand_written import compute_rollups, empty_database

BUCKETS = 24

# The sparkline of each run from all its values.
FROM_FACTS = f"""
WITH points AS (SELECT run_id, step, value FROM metrics WHERE key = 'loss'),
spans AS (SELECT run_id, min(step) AS least, max(step) - min(step) + 1 AS steps FROM points GROUP BY run_id)
SELECT run_id, (step - least) * {BUCKETS} // steps AS bucket,
       coalesce(avg(value) FILTER (NOT isnan(value)), 'nan') AS value
FROM points JOIN spans USING (run_id) GROUP BY ALL
"""


@pytest.mark.parametrize("recent", [False, True], ids=["sorted", "with recent rows"])
def test_sparklines_of_any_length_agree_with_all_values(tmp_path: Path, recent: bool) -> None:
    """A part has whole buckets of the curves at lower resolution: so each value is in the same part."""
    database = empty_database(tmp_path / "index.duckdb")
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
    found = database.execute(sparklines_sql(BUCKETS), {"key": "loss", "runs": ["r1", "r2", "r3", "r4"]}).fetchall()
    expected = {(run, bucket): value for run, bucket, value in database.execute(FROM_FACTS).fetchall()}
    assert {(run, bucket): value for run, bucket, value in found} == pytest.approx(expected, nan_ok=True)
    assert sum(value != value for value in expected.values()) >= 3


def test_a_metric_with_one_step_has_a_sparkline_over_time(tmp_path: Path) -> None:
    database = empty_database(tmp_path / "index.duckdb")
    database.execute("INSERT INTO base.names VALUES (1, 'loss')")
    database.execute("INSERT INTO base.runs (run, run_id, tags) VALUES (1, 'still', []), (2, 'once', [])")
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt) VALUES (1, 'rank', 1, 'a', 0), "
        "(2, 'rank', 2, 'a', 0), (3, 'rank', 2, 'b', 0)"
    )
    database.execute("INSERT INTO base.metrics SELECT 1, 1, 7, i, make_timestamp(i * 1000), i FROM range(48) t(i)")
    database.execute("INSERT INTO base.metrics SELECT p, 1, 7, 1, make_timestamp(p * 1000), p FROM range(2, 4) t(p)")
    compute_rollups(database)
    found = database.execute(sparklines_sql(BUCKETS), {"key": "loss", "runs": ["still", "once"]}).fetchall()
    still = [(bucket, value) for run, bucket, value in sorted(found) if run == "still"]
    assert [bucket for bucket, _ in still] == list(range(BUCKETS))
    assert [value for _, value in still] == sorted(value for _, value in still)
    assert (still[0][1], still[-1][1]) == (0.5, 46.5)
    assert [row for row in found if row[0] == "once"] == [("once", 0, 2.5)]
