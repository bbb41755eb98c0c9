"""Sparklines of runs, from all values and from curves at lower resolution."""

from pathlib import Path

import pytest

from chiplog_client.reads.runs.run_sparklines import sparklines_sql
from tests.support.hand_written import compute_rollups, empty_database
from tests.support.run_builder import NOW, RunBuilder

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
    build = RunBuilder(database, NOW)
    lengths = {1: 48, 2: 24 * 8 * 16, 3: 24 * 8 * 256, 4: 7}
    for run, steps in lengths.items():
        build.run(f"r{run}")
        build.ranks(f"r{run}", 2)
        # The sixth part is NaN, and every tenth value; -256 is a whole number of buckets.
        value = f"CASE WHEN step * 24 // {steps} = 5 OR step % 10 = 3 THEN 'nan' ELSE sin(step) + rank END"
        for late in (False, True):
            chosen = f"run_id = 'r{run}' AND (step % 7 = 4) = {late}"  # a seq that 7 divides
            series = {"steps": steps, "seq": "step - 256", "at": 0, "recent": recent and late}
            build.metrics({"loss": value, "other": value}, **series, where=chosen)
    compute_rollups(database)
    found = database.execute(sparklines_sql(BUCKETS), {"key": "loss", "runs": ["r1", "r2", "r3", "r4"]}).fetchall()
    expected = {(run, bucket): value for run, bucket, value in database.execute(FROM_FACTS).fetchall()}
    assert {(run, bucket): value for run, bucket, value in found} == pytest.approx(expected, nan_ok=True)
    assert sum(value != value for value in expected.values()) >= 3


def test_a_metric_with_one_step_has_a_sparkline_over_time(tmp_path: Path) -> None:
    database = empty_database(tmp_path / "index.duckdb")
    build = RunBuilder(database, "TIMESTAMP '1970-01-01'")
    build.run("still")
    build.run("once")
    for run_id, label in (("still", "a"), ("once", "a"), ("once", "b")):
        build.label(run_id, label)
    build.metrics({"loss": "step"}, steps=48, step=7, at="step / 1000", where="run_id = 'still'")
    build.metrics({"loss": "if(label = 'a', 2, 3)"}, step=7, where="run_id = 'once'")
    compute_rollups(database)
    found = database.execute(sparklines_sql(BUCKETS), {"key": "loss", "runs": ["still", "once"]}).fetchall()
    still = [(bucket, value) for run, bucket, value in sorted(found) if run == "still"]
    assert [bucket for bucket, _ in still] == list(range(BUCKETS))
    assert [value for _, value in still] == sorted(value for _, value in still)
    assert (still[0][1], still[-1][1]) == (0.5, 46.5)
    assert [row for row in found if row[0] == "once"] == [("once", 0, 2.5)]
