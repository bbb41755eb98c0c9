"""Who is slow, in the run and in windows of steps: examples by hand, and random data against plain computations."""

import csv
import os
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pytest

from tests.support.hand_written import compute_rollups
from tests.support.marks import everyday, only_if
from tests.support.random_facts import SEEDS, fill_randomly, rows_of
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves

TRACE = os.environ.get("CHIPLOG_TEST_TRACE", "")  # a file of columns worker, time, batch_time_norm
PLAIN = """
WITH spent AS (
    SELECT run_id, phase, step, label, rank, sum(seconds) AS seconds
    FROM phases WHERE run_id IS NOT NULL GROUP BY run_id, phase, step, label, rank, attempt
    QUALIFY row_number() OVER (PARTITION BY run_id, phase, step, label ORDER BY attempt DESC) = 1
), compared AS (
    SELECT *, median(seconds) OVER step_of AS typical, max(seconds) OVER step_of AS longest,
           count(*) OVER step_of AS n_labels
    FROM spent WINDOW step_of AS (PARTITION BY run_id, phase, step)
)
SELECT run_id, phase, label, max(rank) AS rank, count(*) AS n_steps,
       count(*) FILTER (seconds = longest AND seconds > typical) AS n_slowest,
       median(seconds) AS median_s, median(typical) AS typical_s, sum(seconds - typical) AS excess_s,
       sum(seconds - typical) / nullif(sum(typical), 0) AS share
FROM compared WHERE n_labels > 1 GROUP BY run_id, phase, label
"""
PLAIN_DATA_WAIT = """
WITH steps AS (
    SELECT run_id, label, attempt, rank, step, sum(seconds) FILTER (phase = 'data') AS waited,
           sum(seconds) FILTER (phase = 'step') AS took
    FROM phases WHERE phase IN ('data', 'step') AND run_id IS NOT NULL GROUP BY run_id, label, attempt, rank, step
)
SELECT run_id, label, attempt, rank, count(waited) AS n_steps, sum(waited) AS wait_s, median(waited) AS median_wait_s,
       max(waited) AS max_wait_s, max_by(step, (waited, -step)) FILTER (waited IS NOT NULL) AS max_wait_step,
       sum(took) AS step_s,
       sum(coalesce(waited, 0)) FILTER (took IS NOT NULL) / nullif(sum(took), 0) AS share
FROM steps GROUP BY run_id, label, attempt, rank HAVING count(waited) > 0
"""
PLAIN_PHASE_TIMES = """
WITH spent AS (
    SELECT run_id, label, attempt, rank, phase, step, sum(seconds) AS seconds
    FROM phases WHERE run_id IS NOT NULL GROUP BY run_id, label, attempt, rank, phase, step
), whole AS (
    SELECT run_id, label, attempt, step, seconds FROM spent WHERE phase = 'step'
)
SELECT s.run_id, s.label, s.attempt, s.rank, s.phase, count(*) AS n_steps, sum(s.seconds) AS seconds,
       avg(s.seconds) AS mean_s, sum(s.seconds) FILTER (w.step IS NOT NULL) AS known_s,
       known_s / nullif(max(known_s) FILTER (s.phase = 'step') OVER of_attempt, 0) AS share
FROM spent s LEFT JOIN whole w USING (run_id, label, attempt, step)
GROUP BY s.run_id, s.label, s.attempt, s.rank, s.phase WINDOW of_attempt AS (PARTITION BY s.run_id, s.label, s.attempt)
"""
WINDOWS = """
SELECT run_id, span, phase, label, first_step, last_step, n_steps, mean_s, typical_s, excess_s, share, past_share
FROM straggler_windows WHERE phase <> 'outside'
"""


@proves(
    "parts-of-step-added", "the parts of a step are added before labels are compared", part="n_rows = n_labels AND "
)
@pytest.mark.parametrize("seed", everyday(2, SEEDS))
def test_stragglers_are_those_of_the_plain_query(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    fill_randomly(database, seed)
    expected = rows_of(database, PLAIN)
    assert rows_of(database, "SELECT * FROM stragglers") == expected and expected, f"seed {seed}"
    of_one_run = "SELECT * FROM stragglers WHERE run_id = 'a' AND phase = 'step'"
    assert rows_of(database, of_one_run) == [row for row in expected if row[:2] == ("a", "step")]


@pytest.mark.parametrize("seed", everyday(2, SEEDS))
def test_data_wait_is_that_of_the_plain_query(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    fill_randomly(database, seed)
    expected = rows_of(database, PLAIN_DATA_WAIT)
    assert rows_of(database, "SELECT * FROM data_wait") == expected and expected, f"seed {seed}"


@pytest.mark.parametrize("seed", everyday(2, SEEDS))
def test_phase_times_are_those_of_the_plain_query(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    fill_randomly(database, seed)
    expected = rows_of(database, PLAIN_PHASE_TIMES)
    assert rows_of(database, "SELECT * FROM phase_times") == expected and expected, f"seed {seed}"


def seconds_of(database: duckdb.DuckDBPyConnection) -> dict[tuple[str, str, int], dict[str, float]]:
    """Return by run, phase and step the seconds of each label, in its newest attempt."""
    parts: dict[tuple[str, str, int, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    query = "SELECT run_id, phase, step, label, attempt, seconds FROM phases WHERE run_id IS NOT NULL"
    for run_id, phase, step, label, attempt, seconds in database.execute(query).fetchall():
        parts[run_id, phase, step, label][attempt] += seconds
    found: dict[tuple[str, str, int], dict[str, float]] = defaultdict(dict)
    for (run_id, phase, step, label), attempts in parts.items():
        found[run_id, phase, step][label] = attempts[max(attempts)]
    return {at: labels for at, labels in found.items() if len(labels) > 1}


def windows_of(database: duckdb.DuckDBPyConnection) -> set[tuple[Any, ...]]:
    """Compute the windows, one row after the other."""
    ends = {
        run_id: (first, last)
        for run_id, first, last in database.execute(
            "SELECT run_id, min(step), max(step) FROM phases GROUP BY 1"
        ).fetchall()
    }
    rows: dict[tuple[str, str, str, str], list[tuple[int, float, float]]] = defaultdict(list)
    before: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for (run_id, phase, step), labels in sorted(seconds_of(database).items()):
        first, last = ends[run_id]
        tenth = (step - first) * 100 // (last - first + 1) // 10 + 1
        spans = [f"{tenth}/10", *(["last"] if step > last - 100 else [])]
        for label, seconds in labels.items():
            for span in spans:
                rows[run_id, span, phase, label].append((step, seconds, median(labels.values())))
            for later in range(tenth + 1, 11):
                before[run_id, f"{later}/10", phase, label].append(seconds)
    found: set[tuple[Any, ...]] = set()
    for at, steps in rows.items():
        seconds, typical = sum(step[1] for step in steps), sum(step[2] for step in steps)
        past = before[at]
        past_share = (seconds / len(steps)) / (sum(past) / len(past)) - 1 if past else None
        excess = seconds - typical
        times = (seconds / len(steps), typical / len(steps), excess, excess / typical, past_share)
        found.add((*at, steps[0][0], steps[-1][0], len(steps), *map(rounded, times)))
    return found


@pytest.mark.parametrize("seed", everyday(2, SEEDS))
def test_windows_are_those_computed_row_by_row(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    fill_randomly(database, seed)
    found = {tuple(map(rounded, row)) for row in database.execute(WINDOWS).fetchall()}
    expected = windows_of(database)
    assert {row for row in found ^ expected if not is_about_zero(row)} == set(), f"seed {seed}"
    assert expected


def rounded(value: Any) -> Any:
    """Return six digits of a float: the others depend on the order of a sum."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def is_about_zero(row: tuple[Any, ...]) -> bool:
    """Return True if a sum that should be zero may have rounding errors."""
    return any(isinstance(value, float) and 0 < abs(value) < 1e-9 for value in row)


def spend(database: duckdb.DuckDBPyConnection, seconds: dict[str, list[list[float]]], n_steps: int = 200) -> None:
    """Record a run: by phase, the seconds of each rank in steps in turn."""
    n_ranks = len(next(iter(seconds.values())))
    build = RunBuilder(database, "TIMESTAMP '2026-01-01'")
    build.run("r", primary_label=None)
    build.ranks("r", n_ranks, is_primary=None)
    for phase, ranks in seconds.items():
        for rank, times in enumerate(ranks):
            cycle = f"{times}[step % {len(times)} + 1]"
            build.phases({phase: cycle}, steps=n_steps, at=0, where=f"rank = {rank}")
    compute_rollups(database)


@proves("windows-of-steps", "windows show a rank that is slow for a short time", part="hundredth // 10 + 1", new="1")
def test_a_rank_that_is_slow_for_a_short_time_is_the_first_one_of_its_window(
    database: duckdb.DuckDBPyConnection,
) -> None:
    """Ranks 0 to 2 of ten always take a tenth longer; rank 6 takes twice as long in steps 181 to 194 of 300."""
    ranks = [[1.1 if rank < 3 else 1.0] * 300 for rank in range(10)]
    ranks[6][181:195] = [2.0] * 14
    spend(database, {"step": ranks}, 300)
    whole = database.execute("SELECT label FROM stragglers ORDER BY share DESC").fetchall()
    assert [label for (label,) in whole[:4]] == ["rank0", "rank1", "rank2", "rank6"] or whole[3] == ("rank6",)
    query = """SELECT span, place, label, role, n_steps, round(share, 4), round(past_share, 4), since_step, until_step
        FROM straggler_windows WHERE role = 'culprit' ORDER BY share DESC LIMIT 1"""
    # 14 of 30 steps take 2 s instead of 1: 14 / 30 = 0.4667 more than the others, and more than before.
    assert database.execute(query).fetchall() == [("7/10", 1, "rank6", "culprit", 30, 0.4667, 0.4667, 181, 194)]
    always = "SELECT DISTINCT since_step, until_step FROM straggler_windows WHERE label = 'rank0'"
    assert database.execute(always).fetchall() == [(0, 299)]


def test_the_last_hundred_steps_are_a_window(database: duckdb.DuckDBPyConnection) -> None:
    """rank1 becomes slow in the last 50 of 2,000 steps: 0.5 s more in half of the last 100 steps."""
    times = [[1.0] * 2_000, [1.0] * 1_950 + [1.5] * 50, [1.0] * 2_000]
    spend(database, {"forward": times}, 2_000)
    query = """SELECT first_step, last_step, n_steps, mean_s, typical_s, excess_s, share, past_share, since_step,
        until_step FROM straggler_windows WHERE span = 'last' AND place = 1"""
    assert database.execute(query).fetchall() == [(1_900, 1_999, 100, 1.25, 1.0, 25.0, 0.25, 0.25, 1_950, 1_999)]


ROLES = (
    "SELECT phase, label, role, waits_for FROM straggler_windows WHERE span = 'last' AND role IS NOT NULL ORDER BY ALL"
)


@proves(
    "waiting-is-no-fault",
    "a rank that waits in a collective for another one is no culprit",
    part="max(work_s) OVER of_span - work_s >= 0.5 * excess_s",
    new="false",
)
@pytest.mark.parametrize(
    ("n_slow", "culprits", "victims"),
    [
        # The median is that of the ranks that wait: no rank waits longer than typical.
        (1, ["rank3"], []),
        # The median is between the two groups.
        (2, ["rank2", "rank3"], ["rank0", "rank1"]),
        # The median is that of the slow ranks: none of them exceeds it.
        (3, [], ["rank0"]),
    ],
)
def test_a_rank_that_waits_in_a_collective_is_a_victim_also_where_most_ranks_are_slow(
    database: duckdb.DuckDBPyConnection, n_slow: int, culprits: list[str], victims: list[str]
) -> None:
    """Slow ranks compute for 2 s and the others for 1 s; these wait for a second more in the collective."""
    is_slow = [rank >= 4 - n_slow for rank in range(4)]
    compute, collective = [[2.0 if slow else 1.0] for slow in is_slow], [[0.5 if slow else 1.5] for slow in is_slow]
    spend(database, {"forward": compute, "all_reduce": collective, "step": [[2.5]] * 4})
    first = f"rank{4 - n_slow}"
    assert database.execute(ROLES).fetchall() == [
        *(("all_reduce", label, "victim", first) for label in victims),
        *(("forward", label, "culprit", None) for label in culprits),
    ]


def test_a_rank_whose_own_collective_is_slow_is_a_culprit(database: duckdb.DuckDBPyConnection) -> None:
    spend(database, {"forward": [[1.0]] * 3, "ddp/all_gather": [[0.5], [0.5], [0.9]]})
    assert database.execute(ROLES).fetchall() == [("ddp/all_gather", "rank2", "culprit", None)]


@pytest.mark.parametrize(
    ("compute", "role"), [([2.0, 0.9], "victim"), ([2.0, 1.8], "culprit"), ([2.0, 1.0, 1.0], "culprit")]
)
def test_a_phase_waits_for_the_label_with_more_data_if_that_label_is_shorter_there(
    database: duckdb.DuckDBPyConnection, compute: list[float], role: str
) -> None:
    """rank1 takes a second more for its data. rank0 waits for it only if it computes much longer and rank2 as well."""
    spend(
        database,
        {"data": [[1.1 if rank == 1 else 0.1] for rank in range(len(compute))], "compute": [[s] for s in compute]},
    )
    assert database.execute(ROLES).fetchall() == [
        ("compute", "rank0", role, "rank1" if role == "victim" else None),
        ("data", "rank1", "culprit", None),
    ]


@pytest.mark.parametrize(
    ("phase", "may_wait"),
    [(name, True) for name in ("backward", "all_reduce", "train/AllReduce", "comm", "nccl.send", "sync")]
    + [(name, False) for name in ("forward", "commit", "data", "step", "async", "mpirun")],
)
def test_names_of_phases_that_may_contain_waiting(
    database: duckdb.DuckDBPyConnection, phase: str, may_wait: bool
) -> None:
    assert database.execute("SELECT base.may_wait(?)", [phase]).fetchall() == [(may_wait,)]


def test_of_half_the_ranks_that_are_slow_the_slowest_has_the_first_place(database: duckdb.DuckDBPyConnection) -> None:
    """A median absolute deviation of these times is as large as their differences, so no score by it would exceed 1."""
    spend(database, {"forward": [[1.0], [1.0], [2.0], [2.2]]})
    query = "SELECT label, round(share, 3) FROM straggler_windows WHERE span = 'last' ORDER BY place LIMIT 3"
    assert database.execute(query).fetchall()[:2] == [("rank3", 0.467), ("rank2", 0.333)]


@only_if(bool(TRACE))
def test_the_worker_of_a_recorded_trace_that_was_slow_is_named_first(database: duckdb.DuckDBPyConnection) -> None:
    """Batch times of ten workers, of which worker 6 took up to 2.4 times as long in steps 181 to 194."""
    rows = list(csv.DictReader(Path(TRACE).read_text(encoding="utf-8").splitlines()))
    workers: dict[int, list[float]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: int(row["time"])):
        workers[int(row["worker"])].append(int(row["batch_time_norm"]) / 1000)
    spend(database, {"step": [workers[worker] for worker in sorted(workers)]}, 300)
    query = """SELECT label, span, since_step, until_step FROM straggler_windows WHERE role = 'culprit'
        ORDER BY share DESC LIMIT 1"""
    assert database.execute(query).fetchall() == [("rank6", "7/10", 181, 194)]


def test_steps_may_be_as_large_as_they_can_be(database: duckdb.DuckDBPyConnection) -> None:
    spend(database, {"step": [[1.0], [2.0]]}, 1)
    largest = (1 << 63) - 1
    build = RunBuilder(database, "TIMESTAMP '2026-01-01'")
    build.phases({"step": "1.0 + rank"}, steps=[-largest - 1, largest], seq=1, at=0)
    compute_rollups(database)
    assert database.execute("SELECT label, n_steps, excess_s FROM stragglers ORDER BY label").fetchall() == [
        ("rank0", 3, -1.5),
        ("rank1", 3, 1.5),
    ]
    query = "SELECT span, sum(n_steps) FROM straggler_windows GROUP BY span ORDER BY ALL"
    assert database.execute(query).fetchall() == [("1/10", 2), ("10/10", 2), ("6/10", 2), ("last", 2)]


def test_the_excess_between_steps_is_against_the_median_of_the_labels_of_each_step(database) -> None:
    fill_randomly(database, SEEDS[0])
    [(run,)] = database.execute("SELECT min(run_id) FROM phases WHERE run_id IS NOT NULL").fetchall()
    query = "SELECT * FROM excess_between($run, $phase, 0, 3)"
    n_rows = 0
    for (phase,) in database.execute("SELECT DISTINCT phase FROM phases WHERE run_id = ?", [run]).fetchall():
        found = defaultdict(dict)
        for label, _, step, *seconds in database.execute(query, {"run": run, "phase": phase}).fetchall():
            found[step][label] = seconds
        for step, labels in found.items():
            typical = median(seconds for seconds, _, _ in labels.values())
            for seconds, typical_s, excess_s in labels.values():
                assert (typical_s, excess_s) == pytest.approx((typical, seconds - typical))
                n_rows += 1
            assert 0 <= step <= 3 and len(labels) > 1
    assert n_rows
