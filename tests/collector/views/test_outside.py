"""Time outside of phases: who spent it, who waited for it, and what is no fault."""

from datetime import datetime
from itertools import pairwise
from statistics import median

import duckdb
import pytest

from tests.support.hand_written import compute_rollups
from tests.support.random_facts import SEEDS, fill_randomly
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves

BEGUN = datetime(2026, 1, 1)
ALL = "base.outside(-9223372036854775808, 9223372036854775807)"
ROLES = (
    "SELECT phase, label, role, waits_for FROM straggler_windows WHERE span = 'last' AND role IS NOT NULL ORDER BY ALL"
)
Step = tuple[float, dict[str, float]]  # when it ended, and its phases


def record(database: duckdb.DuckDBPyConnection, *ranks: list[Step] | dict[int, Step], attempt: int = 0) -> None:
    """Record the steps of each rank, in one run."""
    build = RunBuilder(database, f"TIMESTAMP '{BEGUN}'")
    if not attempt:
        build.run("r", primary_label=None)
    for rank, steps in enumerate(ranks):
        build.label("r", f"rank{rank}", attempt=attempt, rank=rank)
        of_rank = f"rank = {rank} AND attempt = {attempt}"
        for step, (ended_s, phases) in steps.items() if isinstance(steps, dict) else enumerate(steps):
            build.phases(phases, steps=[step], at=ended_s, where=of_rank)
    compute_rollups(database)


def excess(database: duckdb.DuckDBPyConnection) -> dict[tuple[str, int], float]:
    """Return the excess of each label and step over the median, where there is one."""
    query = f"SELECT 'rank' || place, step, round(seconds - typical, 6) FROM {ALL} ORDER BY ALL"
    return {(label, step): seconds for label, step, seconds in database.execute(query).fetchall() if seconds}


def waits(n_ranks: int, writes_s: float, **more: float) -> list[list[Step]]:
    """Return ranks with steps of 1 s, of which 0.9 s is in phases. Rank 0 writes before step 6, and the others wait."""
    found = []
    for rank in range(n_ranks):
        late = [writes_s if step >= 6 else 0.0 for step in range(10)]
        phases = [
            {"data": 0.2, "backward": 0.7 + (writes_s if rank and step == 6 else 0)}
            | ({} if rank else more if step == 6 else {})
            for step in range(10)
        ]
        found.append([(step + 1 + late[step], phases[step]) for step in range(10)])
    return found


@pytest.mark.parametrize("has_steps", [True, False], ids=["with step", "without step"])
@pytest.mark.parametrize("n_ranks", [4, 2])
def test_a_rank_that_writes_between_two_steps_is_the_culprit_and_those_who_wait_are_none(
    database: duckdb.DuckDBPyConnection, n_ranks: int, has_steps: bool
) -> None:
    ranks = waits(n_ranks, 10.0)
    if has_steps:  # as of `with run.step():`, without the time between the steps
        ranks = [[(at, phases | {"step": 0.1 + sum(phases.values())}) for at, phases in steps] for steps in ranks]
    record(database, *ranks)
    assert excess(database)[("rank0", 6)] == (10.0 if n_ranks > 2 else 5.0)
    roles = database.execute(ROLES).fetchall()
    assert [row for row in roles if row[2] == "culprit"] == [("outside", "rank0", "culprit", None)]
    victims = [row for row in roles if row[2] == "victim"]
    assert {row[1:] for row in victims} == (set() if n_ranks > 2 else {("rank1", "victim", "rank0")})
    query = """SELECT n_steps, round(mean_s, 6), round(typical_s, 6), round(excess_s, 6), round(share, 6), since_step,
        until_step FROM straggler_windows WHERE span = 'last' AND phase = 'outside' AND label = 'rank0'"""
    # By hand: 9 steps, of which 8 have 0.1 s outside, and one 10.1 s. The median steps take 8 × 1 + 11 = 19 s.
    if n_ranks > 2:
        expected = (9, round(10.9 / 9, 6), 0.1, 10.0, round(10 / 19, 6), 6, 6)
        assert database.execute(query).fetchall() == [expected]


def test_steps_without_phases_are_compared_by_the_time_between_them(database: duckdb.DuckDBPyConnection) -> None:
    """`with run.step():` alone: the others wait within their step."""
    for_step = [[(at, {"step": sum(phases.values())}) for at, phases in steps] for steps in waits(2, 10.0)]
    record(database, *for_step)
    assert database.execute(ROLES).fetchall() == [
        ("outside", "rank0", "culprit", None),
        ("step", "rank1", "victim", "rank0"),
    ]


def test_a_pause_of_all_ranks_blames_none_and_the_first_step_has_none_before_it(
    database: duckdb.DuckDBPyConnection,
) -> None:
    steps = [(60.0 * (step >= 5) + step + 1, {"data": 0.2, "backward": 0.7}) for step in range(10)]
    record(database, *[steps] * 3, [(at + 1000, phases) for at, phases in steps])  # the last one's clock is off
    assert excess(database) == {}
    assert database.execute(ROLES).fetchall() == []
    steps_of = f"SELECT min(step), max(seconds) FROM {ALL}"
    assert database.execute(steps_of).fetchall() == [(1, pytest.approx(60.1))]


def test_a_phase_that_one_rank_has_counts_as_outside_and_a_phase_of_most_of_them_does_not(
    database: duckdb.DuckDBPyConnection,
) -> None:
    ranks = waits(4, 10.0, checkpoint=10.0)
    for rank in (1, 2, 3):
        ranks[rank][3] = (ranks[rank][3][0], ranks[rank][3][1] | {"log": 0.05})
    record(database, *ranks)
    found = excess(database)
    assert found == {("rank0", 6): 10.0}
    assert ("outside", "rank0", "culprit", None) in database.execute(ROLES).fetchall()


def test_a_wait_outside_of_phases_is_no_fault_if_another_rank_works_longer(database: duckdb.DuckDBPyConnection) -> None:
    """Rank 0 reads its data for 3 s; rank 1 waits for it in a barrier without a phase."""
    first = [(3.0 * step, {"data": 2.8, "backward": 0.1}) for step in range(10)]
    second = [(3.0 * step, {"data": 0.3, "backward": 0.1}) for step in range(10)]
    record(database, first, second)
    assert database.execute(ROLES).fetchall() == [
        ("data", "rank0", "culprit", None),
        ("outside", "rank1", "victim", "rank0"),
    ]


@proves(
    "same-step-before",
    "a label is compared with those that have the same step before",
    part="lag(step) OVER of_label",
    new="0",
)
def test_a_label_that_logs_every_tenth_step_is_not_compared_with_those_that_log_each(
    database: duckdb.DuckDBPyConnection,
) -> None:
    each: dict[int, Step] = {step: (step + 1.0, {"data": 0.5}) for step in range(100)}
    few: dict[int, Step] = {step: (step + 1.0, {"data": 0.5}) for step in range(9, 100, 10)}
    record(database, each, each, few)
    assert excess(database) == {}
    assert database.execute(f"SELECT count(DISTINCT place) FROM {ALL}").fetchall() == [(2,)]


def test_a_row_that_is_not_there_yet_leaves_its_label_out(database: duckdb.DuckDBPyConnection) -> None:
    ranks = waits(4, 0.0)
    del ranks[2][9][1]["backward"]
    record(database, *ranks)
    assert excess(database) == {}


def test_time_that_a_step_on_a_gpu_owes_is_subtracted_from_the_next_one(database: duckdb.DuckDBPyConnection) -> None:
    """The host is ahead: it does not wait for the phase of step 6 until step 7."""
    ahead = waits(3, 10.0)
    for steps in ahead[1:]:
        steps[6] = (7.0, steps[6][1])
    record(database, *ahead)
    # By hand: the others are in phases for 10.9 s of the 1 s of step 6, so of 10.1 s outside in step 7 0.2 s count.
    assert excess(database) == {("rank0", 6): 10.1, ("rank0", 7): -0.1}


def test_parts_of_a_step_end_with_the_last_one_and_garbage_collection_is_within_them(
    database: duckdb.DuckDBPyConnection,
) -> None:
    record(database, *waits(4, 10.0))
    build = RunBuilder(database, f"TIMESTAMP '{BEGUN}'")
    build.phases({"data": 0.1}, steps=[3], seq=50, at=3.5)
    build.phases({"gc": 5.0}, steps=[6], seq=51, at=17, where="rank = 1")
    compute_rollups(database)
    assert excess(database) == {("rank0", 6): 10.0}


def test_steps_that_a_later_attempt_does_again_count_there(database: duckdb.DuckDBPyConnection) -> None:
    record(database, *waits(3, 10.0))
    again: dict[int, Step] = {step: (100.0 + step, {"data": 0.2, "backward": 0.7}) for step in range(4, 10)}
    record(database, again, again, again, attempt=1)
    assert excess(database) == {}
    assert database.execute(f"SELECT DISTINCT step FROM {ALL} ORDER BY 1").fetchall() == [
        (step,) for step in (1, 2, 3, 5, 6, 7, 8, 9)
    ]


def test_a_phase_with_the_name_outside_replaces_the_time_that_is_computed(database: duckdb.DuckDBPyConnection) -> None:
    ranks = waits(4, 10.0)
    ranks[0][2][1]["outside"] = ranks[1][2][1]["outside"] = 0.5
    record(database, *ranks)
    assert excess(database) == {}
    query = "SELECT DISTINCT n_steps FROM straggler_windows WHERE phase = 'outside'"
    assert database.execute(query).fetchall() == [(1,)]


def test_a_range_knows_the_step_before_it(database: duckdb.DuckDBPyConnection) -> None:
    record(database, *waits(4, 10.0))
    query = "SELECT previous, step, round(seconds, 6), round(usual, 6) FROM base.outside(6, 6) WHERE place = 0"
    assert database.execute(query).fetchall() == [(5, 6, 10.1, 11.0)]


@pytest.mark.parametrize("seed", list(SEEDS)[:2])
def test_seconds_outside_are_those_computed_row_by_row(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    fill_randomly(database, seed)
    query = "SELECT run_id, label, attempt, step, phase, seconds, epoch_us(ts) FROM phases WHERE run_id IS NOT NULL"
    ended: dict[tuple[str, str, int], dict[int, int]] = {}
    spent: dict[tuple[str, str, int, int], float] = {}
    have: dict[tuple[str, str, int, int], set[str]] = {}
    for run_id, label, attempt, step, phase, seconds, us in database.execute(query).fetchall():
        steps = ended.setdefault((run_id, label, attempt), {})
        steps[step] = max(us, steps.get(step, us))
        if phase != "step":  # half of the labels have each of these phases, which are longer than half of a step
            spent[run_id, label, attempt, step] = spent.get((run_id, label, attempt, step), 0) + seconds
            have.setdefault((run_id, label, attempt, step), set()).add(phase)
    groups: dict[tuple[str, int, int, frozenset[str]], dict[str, float]] = {}
    for (run_id, label, attempt), steps in ended.items():
        later = [
            min(other)
            for (run, name, number), other in ended.items()
            if (run, name) == (run_id, label) and number > attempt
        ]
        order = [step for step in sorted(steps) if step < min(later, default=step + 1)]
        rest = [
            (steps[step] - steps[before]) / 1e6 - spent.get((run_id, label, attempt, step), 0)
            for before, step in pairwise(order)
        ]
        for at, (before, step) in enumerate(pairwise(order)):
            phases = have.get((run_id, label, attempt, step))
            if phases:
                seconds = max(0.0, rest[at] + (min(0.0, rest[at - 1]) if at else 0.0))
                groups.setdefault((run_id, step, before, frozenset(phases)), {})[label] = seconds
    expected = {
        (run_id, step, label, round(seconds, 6), round(median(group.values()), 6))
        for (run_id, step, _, _), group in groups.items()
        if len(group) > 1 and max(group.values()) > 0
        for label, seconds in group.items()
    }
    found = database.execute(f"""SELECT o.run_id, o.step, l.label, round(o.seconds, 6), round(o.typical, 6)
        FROM {ALL} o JOIN base.labels_by_place l ON l.run_id = o.run_id AND l.place = o.place""").fetchall()
    assert set(found) == expected and expected, f"seed {seed}"
