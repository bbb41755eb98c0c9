"""Runs that must exist, or must not: decided once for a launch, in log order, and the same after a restart."""

from pathlib import Path

import pytest

from chiplog_schemas.limits import NAME_CHARS_MAX
from tests.support.collector_log import Rank, whole
from tests.support.index import Index
from tests.support.safeguard import proves

RUNS = "SELECT run_id, count(DISTINCT label) FROM labels GROUP BY ALL ORDER BY ALL"
REFUSED = (
    "SELECT run_id, label, level, body->>'asked', body->>'used' FROM events WHERE kind = 'resume_refused' ORDER BY ALL"
)


def of(launch: str, number: int, rank: int, demand: str | None, **more: object) -> Rank:
    said = {"launch": launch, "rank": rank, "primary": rank == 0} | ({"resume": demand} if demand else {}) | more
    made = Rank(number, **({"label": f"rank{rank}"} | said))  # type: ignore[arg-type]
    made.log(0, x=float(number))
    return made


@proves("launch-in-one-run", "all ranks of a launch are in the run that was decided for it", value="None")
@proves("demands-survive-restart", "what was decided of a launch is kept over a restart of the index")
def test_a_run_that_must_be_new_and_is_not_is_kept_under_another_name_for_all_of_its_launch(index: Index) -> None:
    index.take(whole(of("first", 0, 0, None)))
    index.take(whole(of("second", 1, 0, "never")))
    index.reopen()
    index.take(whole(of("second", 2, 1, "never"), of("second", 3, 0, "never", restart=1)))
    child = of("process:9", 4, 7, "never", resume_launch="second", label="rank0.77", primary=False)
    index.take(whole(child))
    assert index.sql(RUNS) == [("r", 1), ("r-2", 3)]
    assert index.sql(REFUSED) == [("r-2", "rank0", "error", "r", "r-2")], "one row for the launch"
    assert index.sql("SELECT run_id, sum(value) FROM metrics GROUP BY ALL ORDER BY ALL") == [("r", 0.0), ("r-2", 10.0)]
    assert index.sql("SELECT run_id, primary_label, n_attempts FROM runs ORDER BY ALL")[1] == ("r-2", "rank0", 2)


def test_a_run_that_must_exist_and_does_not_is_kept_under_another_name_and_makes_none_of_its_own(index: Index) -> None:
    index.take(whole(of("first", 0, 0, "must"), of("first", 1, 1, "must")))
    assert index.sql(RUNS) == [("r-2", 2)]
    assert index.sql(REFUSED) == [("r-2", "rank0", "error", "r", "r-2")]


def test_the_first_free_number_is_taken_and_a_name_stays_within_its_limit(index: Index) -> None:
    index.take(whole(of("a", 0, 0, None)), whole(of("b", 1, 0, None, run_id="r-2")))
    index.take(whole(of("c", 2, 0, "never")))
    index.take(whole(of("d", 3, 0, "must", run_id="x" * NAME_CHARS_MAX)))
    assert [run_id for run_id, _ in index.sql(RUNS)] == ["r", "r-2", "r-3", f"{'x' * (NAME_CHARS_MAX - 2)}-2"]


@pytest.mark.parametrize("demand", ["must", "never"])
def test_a_demand_that_is_met_leaves_no_trace(index: Index, demand: str) -> None:
    if demand == "must":
        index.take(whole(of("first", 0, 0, None)))
    index.take(whole(of("second", 1, 0, demand)))
    index.take(whole(of("third", 2, 0, None)))
    index.take(whole(of("second", 3, 1, demand)))
    assert index.sql("SELECT DISTINCT run_id FROM labels") == [("r",)]
    assert index.sql(REFUSED) == []


def test_what_was_decided_is_the_same_after_a_rebuild(tmp_path: Path) -> None:
    blocks = [
        whole(of("first", 0, 0, None)),
        whole(of("second", 1, 0, "never")),
        whole(of("third", 2, 0, "must", run_id="other")),
        whole(of("second", 3, 1, "never")),
    ]
    found = []
    for is_reopened in (False, True):
        (tmp_path / str(is_reopened)).mkdir()
        index = Index(tmp_path / str(is_reopened))
        for block in blocks:
            index.take(block)
            if is_reopened:
                index.reopen()
        found.append((index.sql(RUNS), index.sql(REFUSED), index.sql("FROM labels ORDER BY ALL")))
    assert found[0] == found[1]
