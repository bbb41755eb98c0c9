"""The curves of a run as a table without SQL: a column for each key."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

import chiplog
from chiplog_client.reads.curves.history import run_history


def test_a_history_has_a_column_for_each_key_and_the_newest_attempt_counts(root: Path) -> None:
    table = run_history("gpt-old", ["loss", 'a "quoted" key', "step", "nothing", "loss"], dir=root)
    assert table.columns == ["label", "step", "loss", 'a "quoted" key', "metric.step", "nothing"]
    assert table.tuples() == [
        ("rank0", 0, 4.0, None, None, None),
        ("rank0", 1, 2.0, 5.0, 6.0, None),
        ("rank0", 2, 1.0, None, None, None),
        ("rank1", 0, 8.0, None, None, None),
    ]
    assert run_history("gpt-old", "loss", label="rank1", dir=root).tuples() == [("rank1", 0, 8.0)]
    assert {"label", "loss", 'a "quoted" key'} <= set(run_history("gpt-old", dir=root).columns), "all without keys"


def test_a_history_of_few_points_has_the_mean_of_each_bucket(root: Path) -> None:
    table = run_history("gpt-old", ["loss", 'a "quoted" key'], points=2, dir=root)
    assert table.columns == ["label", "step", "loss", 'a "quoted" key']
    assert table.tuples() == [("rank0", 0, 3.0, 5.0), ("rank0", 2, 1.0, None), ("rank1", 0, 8.0, None)]
    assert run_history("gpt-old", "loss", points=2, label="rank1", dir=root).tuples() == [("rank1", 0, 8.0)]
    assert math.isnan(run_history("gpt-new", "loss", points=2, dir=root).tuples()[0][2])


def test_a_run_without_the_key_has_no_rows_and_an_unknown_run_is_named_with_the_nearest(root: Path) -> None:
    assert len(run_history("vit", "loss", dir=root)) == 0
    for points in (None, 10):
        with pytest.raises(chiplog.QueryError, match=r"^run 'gpt-nwe' is unknown; did you mean 'gpt-new'"):
            run_history("gpt-nwe", "loss", points=points, dir=root)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run_history("r", "loss", points=0), "points is 0; give 1 or more"),
        (lambda: run_history("r", []), "keys is empty; name at least one metric"),
    ],
)
def test_a_bad_argument_is_refused_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(chiplog.QueryError) as error:
        call()
    assert (error.value.kind, str(error.value)) == ("refused", message)
