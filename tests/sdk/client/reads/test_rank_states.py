"""Which label hangs, which ones wait, which one is slow."""

import pytest

from chiplog_client.reads.rank_states import (
    SORTS,
    RankRow,
    Severity,
    by_node,
    judge,
    label_order,
    matches,
    median_pace_s,
)
from tests.support.safeguard import proves


def ranks(n: int, **values: object) -> list[RankRow]:
    rows = [RankRow(f"rank{number}", rank=number, node=f"node{number // 2}") for number in range(n)]
    for row in rows:
        for name, value in {"step": 10, "idle_s": 0.5, "pace_s": 1.0, "seen_s": 0.5, **values}.items():
            setattr(row, name, value)
    return rows


def severities(rows: list[RankRow]) -> list[Severity]:
    judge(rows)
    return [row.severity for row in rows]


def test_labels_with_new_steps_run() -> None:
    assert severities(ranks(3)) == [Severity.RUNNING] * 3


@proves("old-step-is-a-stall", "a label without a new step for long stalls", condition=False)
@proves(
    "lowest-step-hangs",
    "of stalled labels the one at the lowest step is the one that hangs",
    value="_in_other_phase(stalled)",
)
def test_the_label_at_the_lowest_step_hangs_and_the_others_wait() -> None:
    rows = ranks(4, idle_s=60.0)
    rows[2].step = 9
    assert severities(rows) == [Severity.WAITS, Severity.WAITS, Severity.HANGS, Severity.WAITS]
    assert sorted(rows, key=SORTS["attention"])[0] is rows[2]


@proves(
    "late-telemetry-blames-no-label", "a label from which nothing arrives is late, and does not hang", condition=False
)
def test_labels_of_a_late_node_do_not_hang() -> None:
    rows = ranks(4, idle_s=60.0)
    rows[2].step = 9
    judge(rows, {"node1"})
    assert [row.severity for row in rows] == [Severity.STALLED, Severity.STALLED, Severity.LATE, Severity.LATE]


def test_of_several_that_are_behind_the_lowest_step_is_first() -> None:
    rows = ranks(4, idle_s=60.0)
    rows[1].step, rows[2].step = 9, 7
    judge(rows)
    assert [row.label for row in sorted(rows, key=SORTS["attention"])][:2] == ["rank2", "rank1"]


def test_at_the_same_step_the_label_in_another_phase_hangs() -> None:
    rows = ranks(4, idle_s=60.0, open_phase="all_reduce")
    rows[3].open_phase = "data"
    assert severities(rows) == [*[Severity.WAITS] * 3, Severity.HANGS]
    rows[3].open_phase = None  # stopped, or chiplog does not see it
    assert severities(rows)[3] == Severity.HANGS


def test_without_a_majority_no_label_is_blamed() -> None:
    rows = ranks(4, idle_s=60.0)
    assert severities(rows) == [Severity.STALLED] * 4
    for row, phase in zip(rows, ("a", "a", "b", "b"), strict=True):
        row.open_phase = phase
    assert severities(rows) == [Severity.STALLED] * 4


def test_a_label_that_stops_alone_hangs() -> None:
    rows = ranks(4)
    rows[1].idle_s, rows[1].step = 60.0, 3
    assert severities(rows)[1] == Severity.HANGS
    assert severities(rows)[0] == Severity.RUNNING


@proves("finished-label-is-ahead", "a label that is behind those that have finished hangs", value="running")
def test_a_label_that_is_behind_finished_ones_hangs() -> None:
    rows = ranks(3, idle_s=60.0)
    rows[1].state = rows[2].state = "finished"
    assert severities(rows) == [Severity.STALLED, Severity.FINISHED, Severity.FINISHED], "all reached the same step"
    rows[0].step = 7
    assert severities(rows) == [Severity.HANGS, Severity.FINISHED, Severity.FINISHED]
    rows[1].state = rows[2].state = "crashed"
    assert severities(rows)[0] == Severity.STALLED, "it may wait for one of them"


def test_slow_steps_are_no_stall_until_five_of_them() -> None:
    rows = ranks(2, idle_s=60.0, pace_s=20.0)
    assert severities(rows) == [Severity.RUNNING] * 2
    for row in rows:
        row.idle_s = 101.0
    assert severities(rows) == [Severity.STALLED] * 2


def test_a_label_above_the_median_step_time_is_slow() -> None:
    rows = ranks(3)
    rows[0].pace_s = 1.3
    assert severities(rows) == [Severity.SLOW, Severity.RUNNING, Severity.RUNNING]
    assert median_pace_s(rows) == 1.0


def test_ended_labels_neither_hang_nor_count() -> None:
    rows = ranks(3, idle_s=60.0)
    for row, state in zip(rows, ("failed", "crashed", "finished"), strict=True):
        row.state = state
    assert severities(rows) == [Severity.FAILED, Severity.FAILED, Severity.FINISHED]


def test_a_rank_without_steps_starts_and_stalls_if_it_is_silent_while_others_train() -> None:
    rows = ranks(3)
    rows[0].step, rows[0].idle_s = None, 60.0
    assert severities(rows)[0] == Severity.STARTING
    rows[0].seen_s = 60.0
    assert severities(rows)[0] != Severity.STARTING
    rows[0].rank = None  # such as an evaluator, which waits for a checkpoint
    assert severities(rows)[0] == Severity.STARTING


@pytest.mark.parametrize(
    ("words", "is_match"), [("rank1", True), ("NODE0 rank1", True), ("hangs", False), ("running", True), ("x", False)]
)
def test_a_filter_matches_if_each_word_is_found(words: str, is_match: bool) -> None:
    assert matches(ranks(2)[1], words) is is_match


def test_nodes_are_in_the_order_of_their_first_label() -> None:
    rows = ranks(6)
    rows[5].idle_s, rows[5].step = 60.0, 3
    judge(rows)
    assert [node.node for node in by_node(rows, "attention")] == ["node2", "node0", "node1"]
    assert [node.node for node in by_node(rows, "rank")] == ["node0", "node1", "node2"]
    assert by_node(rows, "attention")[0].worst is rows[5]


def test_labels_are_in_the_order_of_their_numbers() -> None:
    labels = ["rank10", "eval", "rank2", "node-a", "rank1", "7"]
    assert sorted(labels, key=label_order) == ["7", "eval", "node-a", "rank1", "rank2", "rank10"]
