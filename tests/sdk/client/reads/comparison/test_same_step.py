"""Metrics of several runs at the same step: the last common one, or the last one until a step."""

import math
from pathlib import Path

import duckdb
import pytest

from chiplog_client.client import connect
from chiplog_client.reads.comparison.same_step import STEPS_BACK_MAX, is_same_number, read_same_step
from tests.support.compared_runs import fill_compared_runs
from tests.support.hand_written import hand_written, kept_open
from tests.support.run_builder import RunBuilder

# Name, and the steps of run-1 and of run-2: both label values are the step, that of rank1 is 1 more.
STEPS = {
    "equal": (range(10), range(10)),
    "rare": (range(10), range(0, 9, 4)),
    "apart": (range(0, 10, 2), range(1, 10, 2)),
    "alone": (range(10), range(0)),
    "long ago": (range(0, STEPS_BACK_MAX + 20, STEPS_BACK_MAX + 10), range(0, STEPS_BACK_MAX + 9, 7)),
}


def fill(database: duckdb.DuckDBPyConnection) -> None:
    fill_compared_runs(database)
    build = RunBuilder(database)
    for key, of_runs in STEPS.items():
        for run, steps in enumerate(of_runs, 1):
            build.metrics({key: "step * run + rank"}, steps=steps, at=0, where=f"run_id = 'run-{run}'")


def test_each_metric_has_the_last_step_that_all_its_runs_have(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill(database)
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        found = {row["key"]: row for row in read_same_step(client, ["run-2", "run-1"], 1 << 62)}
        assert "alone" not in found
        assert (found["equal"]["step"], found["equal"]["values"]) == (9, [18.5, 9.5])
        assert (found["rare"]["step"], found["rare"]["values"]) == (8, [16.5, 8.5])
        assert (found["apart"]["step"], found["apart"]["values"]) == (None, [None, None])
        assert found["long ago"]["step"] in (0, None), "no step after the first is common"
        at_five = {row["key"]: row for row in read_same_step(client, ["run-1", "run-2"], 5)}
        assert (at_five["equal"]["step"], at_five["equal"]["values"]) == (5, [5.5, 10.5])
        assert (at_five["rare"]["step"], at_five["rare"]["is_same"]) == (4, False)
        at_zero = {row["key"]: row for row in read_same_step(client, ["run-1", "run-2"], 0)}
        assert at_zero["equal"]["is_same"] and "apart" not in at_zero, "run-2 begins later"
        assert read_same_step(client, ["run-1", "gone"], 5) == []


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [(0.1 + 0.2, 0.3, True), (math.nan, math.nan, True), (math.inf, math.inf, True), (0.3, 0.3000001, False)],
)
def test_rounding_of_means_and_nan_make_no_difference(one: float, other: float, is_same: bool) -> None:
    assert is_same_number(one, other) == is_same
