"""Which ranks waited for data, are slow or are behind: the examples that docs/sql computes by hand."""

import struct
from datetime import datetime, timedelta

import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import START_US, Rank, whole
from tests.support.index import Index
from tests.support.safeguard import proves

START = datetime(1970, 1, 1) + timedelta(microseconds=START_US)


def spend(rank: Rank, number: int, /, **seconds: float) -> None:
    rank.say(EventKind.PHASES, number, pack(list(seconds)), struct.pack(f"<{len(seconds)}d", *seconds.values()))


COSTS = "SELECT attempt, last_step, resumed_step, steps_again, down_s, again_s, cost_s FROM restarts"


def end(rank: Rank, at_s: float, state: str) -> None:
    rank.say(EventKind.STATE, {"state": state, "exit_code": int(state != "finished")}, ts=START_US + int(at_s * 1e6))


def reach(rank: Rank, step: int, at_s: float, kind: EventKind = EventKind.METRICS, key: str = "loss") -> None:
    rank.say(kind, step, pack([key]), struct.pack("<d", 1.0), ts=START_US + int(at_s * 1e6))


def test_waiting_for_data_is_summed_up_and_shared_by_the_steps_whose_length_is_known(index: Index) -> None:
    rank, idle = Rank(0), Rank(1)
    spend(rank, 0, data=1.0)
    spend(rank, 1, data=0.5, step=2.0, forward=9.0)
    spend(rank, 2, data=1.5)
    spend(rank, 2, data=0.5, step=4.0)
    spend(rank, 3, step=2.0, data=0.5)
    spend(idle, 3, step=2.0)
    index.take(whole(rank, idle))
    assert index.sql("SELECT * FROM data_wait") == [("r", "rank0", 0, 0, 4, 4.0, 0.75, 2.0, 2, 8.0, 0.375)]


@proves(
    "phase-has-time", "a row of phases has the time at which it was recorded", part="f.ts", new="NULL::TIMESTAMP AS ts"
)
def test_phases_of_the_last_hour_can_be_asked_for(index: Index) -> None:
    rank = Rank(0)
    for step, at_s in enumerate((0.0, 1800.0, 5400.0)):
        rank.say(
            EventKind.PHASES, step, pack(["forward"]), struct.pack("<d", 1.0 + step), ts=START_US + int(at_s * 1e6)
        )
    index.take(whole(rank))
    an_hour_before = START + timedelta(seconds=5400 - 3600)
    assert index.sql(f"SELECT step, seconds, ts FROM phases WHERE ts >= '{an_hour_before}' ORDER BY ts") == [
        (1, 2.0, START + timedelta(seconds=1800)),
        (2, 3.0, START + timedelta(seconds=5400)),
    ]


def test_waiting_is_known_where_steps_are_not_and_of_equals_the_first_step_is_named(index: Index) -> None:
    rank = Rank(0)
    for step in (3, 2, 5):
        spend(rank, step, data=0.25)
    index.take(whole(rank))
    assert index.sql("SELECT n_steps, max_wait_step, step_s, share FROM data_wait") == [(3, 2, None, None)]


def test_a_straggler_is_told_by_its_excess_over_the_median_of_the_labels(index: Index) -> None:
    ranks = [Rank(number) for number in range(3)]
    for rank, times in zip(ranks, ((1.0, 1.0), (1.0, 1.0), (3.0, 2.0)), strict=True):
        for step, seconds in enumerate(times):
            spend(rank, step, forward=seconds)
    spend(ranks[2], 2, forward=50.0, save=7.0)  # alone: no label to compare with
    index.take(whole(*ranks))
    assert index.sql("SELECT * FROM stragglers ORDER BY label") == [
        ("r", "forward", "rank0", 0, 2, 0, 1.0, 1.0, 0.0, 0.0),
        ("r", "forward", "rank1", 1, 2, 0, 1.0, 1.0, 0.0, 0.0),
        ("r", "forward", "rank2", 2, 2, 2, 2.5, 1.0, 3.0, 1.5),
    ]


def test_of_a_step_done_twice_the_newest_attempt_counts(index: Index) -> None:
    first, again, other = Rank(0), Rank(1, rank=0, label="rank0", restart=1), Rank(2, rank=1, label="rank1")
    spend(first, 4, forward=100.0)
    spend(again, 4, forward=2.0)
    spend(other, 4, forward=2.0)
    index.take(whole(first), whole(again, other))
    assert index.sql("SELECT label, median_s, excess_s FROM stragglers ORDER BY label") == [
        ("rank0", 2.0, 0.0),
        ("rank1", 2.0, 0.0),
    ]


def test_a_rank_is_behind_by_steps_and_by_seconds(index: Index) -> None:
    ranks = [Rank(number) for number in range(3)]
    for rank, step, at_s in zip(ranks, (12, 12, 9), (60, 61, 45), strict=True):
        reach(rank, step - 1, at_s - 5)
        reach(rank, step, at_s)
        reach(rank, step, at_s + 2, EventKind.PHASES)
        reach(rank, 3, at_s + 3)
    index.take(whole(*ranks))
    assert index.sql("SELECT * FROM rank_progress ORDER BY label") == [
        ("r", "rank0", 0, 0, 12, START + timedelta(seconds=60), 0, 0.0),
        ("r", "rank1", 0, 1, 12, START + timedelta(seconds=61), 0, -1.0),
        ("r", "rank2", 0, 2, 9, START + timedelta(seconds=45), 3, 15.0),
    ]


def test_progress_is_that_of_the_newest_attempt(index: Index) -> None:
    first, again = Rank(0), Rank(1, rank=0, label="rank0", restart=1)
    reach(first, 90, 10)
    reach(again, 80, 20)
    index.take(whole(first), whole(again))
    assert index.sql("SELECT attempt, step, steps_behind FROM rank_progress") == [(1, 80, 0)]


def test_steps_may_be_as_large_as_they_can_be(index: Index) -> None:
    largest = (1 << 63) - 1
    ranks = [Rank(0), Rank(1)]
    reach(ranks[0], largest, 5)
    reach(ranks[0], largest, 9)
    reach(ranks[1], -largest, 7)
    index.take(whole(*ranks))
    rows = index.sql("SELECT label, step, reached_at, steps_behind FROM rank_progress ORDER BY label")
    assert rows == [
        ("rank0", largest, START + timedelta(seconds=5), 0),
        ("rank1", -largest, START + timedelta(seconds=7), largest),
    ], "as far behind as an integer can express"


def test_a_restart_costs_the_time_without_a_step_and_the_work_that_is_done_again(index: Index) -> None:
    """The example worked by hand. A label that is no rank logs in its own time, and counts for nothing."""
    first, again = Rank(0, launch="a"), Rank(1, rank=0, label="rank0", restart=1, launch="a")
    other = Rank(2, rank=None, label="eval", primary=False)
    for step in range(10):
        reach(first, step, step * 10)
    for at_s in (5, 120, 400):
        reach(other, 1_000 + at_s, at_s)
    said = {"state": "failed", "exit_code": 1, "reason": "ValueError: boom"}
    first.say(EventKind.STATE, said, ts=START_US + 95_000_000)
    reach(again, 8, 150)
    reach(again, 9, 160, EventKind.PHASES)
    index.take(whole(first, again, other))
    assert index.sql("SELECT * FROM restarts") == [
        (
            *("r", 1, "rank0", "ValueError: boom"),
            *(9, START + timedelta(seconds=90), 8, START + timedelta(seconds=150)),
            *(2, 60.0, 10.0, 70.0),
        )
    ]


@proves(
    "resume-point-by-step-back",
    "a metric that counts on by itself does not hide where the training resumed",
    part="CASE WHEN b.last_step >= r.step THEN b.n ELSE 0 END DESC, b.last_step::HUGEINT - r.step DESC NULLS LAST, ",
)
def test_a_restart_is_measured_by_the_metric_that_goes_back_beside_one_that_only_counts_on(index: Index) -> None:
    """Losses have steps, evaluations have none: these count on from the largest step of the label."""
    attempts = [Rank(n, label="rank0", rank=0, restart=n, launch="l") for n in range(3)]
    top, now_s = -1, 0
    for rank, (first, last) in zip(attempts, ((0, 67), (60, 90), (80, 99)), strict=True):
        top, now_s = top + 1, now_s + 10
        reach(rank, top, now_s, key="test/acc")
        for step in range(first, last + 1):
            top, now_s = max(top, step), now_s + 1
            reach(rank, step, now_s)
            reach(rank, step // 50, now_s, key="per_epoch")
            if step % 10 == 0:
                top += 1
                reach(rank, top, now_s, key="test/acc")
    index.take(whole(*attempts))
    for _ in range(8):  # one of DuckDB's optimizers lost rows in every second query
        rows = index.sql("SELECT attempt, last_step, resumed_step, steps_again FROM restarts ORDER BY attempt")
        assert rows == [(1, 67, 60, 8), (2, 90, 80, 11)]


def test_an_attempt_whose_end_nobody_saw_did_not_end_before_it_began(index: Index) -> None:
    """It may have ended at any time since its start: its own round is not the one after it."""
    agent = Rank(9, role="agent", run_id="", rank=None)
    ranks = [Rank(n, label="rank0", rank=0, restart=n, started_at=START_US + n * 10_000_000) for n in range(3)]
    for n, rank in enumerate(ranks):
        reach(rank, 5 + n, 10 * n + 1)
        said = {"state": "crashed", "produced": len(rank.events), "late_us": 8_000_000}
        agent.say(EventKind.PEER, rank.uuid, said, ts=START_US + n * 10_000_000 + 8_000_000)
    index.take(whole(*ranks, agent))
    assert index.sql("SELECT round FROM base.rounds ORDER BY producer") == [(0,), (1,), (2,)]


def test_a_round_that_logged_no_step_is_time_lost_and_one_that_goes_on_at_the_next_step_repeats_nothing(
    index: Index,
) -> None:
    ranks = [Rank(n, rank=None, label="trainer", restart=n) for n in range(3)]
    reach(ranks[0], 4, 40)
    reach(ranks[2], 5, 100)
    index.take(whole(*ranks))
    rows = index.sql("SELECT attempt, label, steps_again, down_s, again_s, cost_s FROM restarts")
    assert rows == [(2, None, 0, 60.0, 0.0, 60.0)]


@pytest.mark.parametrize("ranks", [(0, 1), (None, None)])
def test_who_goes_on_while_another_label_begins_again_is_no_part_of_what_that_costs(
    index: Index, ranks: tuple[int | None, int | None]
) -> None:
    goes_on, first = (Rank(n, label=f"label{n}", rank=rank) for n, rank in enumerate(ranks))
    again = Rank(2, label="label1", rank=ranks[1], restart=1, started_at=START_US + 20_000_000)
    for step in range(60):
        reach(goes_on, step, step)
    for step in range(10):
        reach(first, step, step)
        reach(again, step + 8, step + 21)
    index.take(whole(goes_on, first, again))
    assert index.sql(COSTS) == [(1, 9, 8, 2, 12.0, 1.0, 13.0)]


def test_of_labels_that_begin_again_one_after_the_other_no_step_counts_after_the_first_of_them_went_on(
    index: Index,
) -> None:
    ranks = [Rank(0), Rank(1)]
    for rank, n_steps in zip(ranks, (60, 10), strict=True):
        for step in range(n_steps):
            reach(rank, step, step)
    again = [Rank(10 + n, f"rank{n}", rank=n, restart=1, started_at=START_US + at) for n, at in ((0, 70), (1, 15))]
    reach(again[1], 10, 16)
    reach(again[0], 60, 71)
    index.take(whole(*ranks, *again))
    assert index.sql(COSTS) == [(1, 15, 10, 6, 1.0, 5.0, 6.0)]


def test_what_had_finished_and_is_resumed_is_no_restart_but_what_one_rank_broke_off_is(index: Index) -> None:
    for run_id, state in (("resumed", "finished"), ("broken", "failed")):
        first, second = Rank(0, run_id=run_id), Rank(1, run_id=run_id)
        again = [
            Rank(10 + n, f"rank{n}", rank=n, run_id=run_id, launch="l2", started_at=START_US + 80_000_000_000)
            for n in (0, 1)
        ]
        for rank in (first, second, *again):  # each run has producers of its own
            rank.uuid = f"{run_id:.8}".encode().ljust(15, b"-") + rank.uuid[:1]
        reach(first, 4, 4)  # rank 0 alone logs
        end(first, 5, "finished")
        end(second, 5, state)
        reach(again[0], 5, 80_004)
        index.take(whole(first, second, *again))
    assert index.sql("SELECT run_id, label, down_s FROM restarts") == [("broken", "rank1", 80_000.0)]


def test_a_rank_that_moves_to_a_node_whose_clock_is_off_costs_what_it_costs_by_one_clock(index: Index) -> None:
    first, again = Rank(0, node="a"), Rank(1, "rank0", rank=0, node="b", restart=1, started_at=START_US - 20_000_000)
    for step in range(10):
        reach(first, step, step)
    reach(again, 8, -11)  # at 19 s by the other clock
    index.take(whole(first, again))
    index.sql("UPDATE base.producers SET clock_us = CASE node WHEN 'a' THEN 0 ELSE 30000000 END")
    assert index.sql(COSTS) == [(1, 9, 8, 2, 10.0, 1.0, 11.0)]
