"""Phases over wall time: where the lengths and the stamps of rows place them, and what is left out."""

from typing import Any

import pytest

from chiplog_client.client import Client
from chiplog_client.reads.timeline import TimelineRequest, lay_out, read_timeline
from tests.support.slow_ranks import fill_rank_outside

S = 1_000_000

fill = fill_rank_outside  # for the fixture `client`


def bar(
    step: int, begun_s: float, ended_s: float, *parts: tuple[float, int, float], row: int = 0, attempt: int = 0
) -> dict[str, Any]:
    """A bar with parts of (recorded at, phase, seconds)."""
    listed = [[at * S, phase, seconds * S] for at, phase, seconds in parts]
    times = {"begun_us": int(begun_s * S), "ended_us": int(ended_s * S)}
    return {"row": row, "attempt": attempt, "step": step, "parts": listed, **times}


def test_phases_follow_each_other_from_the_start_of_the_step_and_the_rest_is_in_none() -> None:
    found = lay_out([bar(7, 10, 14, (14, 0, 1), (14, 1, 2))], {})
    assert (found["begun_us"], found["span_s"]) == (10 * S, 4)
    assert found["bars"] == [[0, 7, 0, 4]]
    assert found["pieces"] == [[0, 1, 1, 2, -1, 1]]


def test_a_phase_of_a_later_part_ended_after_the_part_before() -> None:
    """By hand: phase 0 takes 3 s of the first part; what is recorded at 10 s ended after it."""
    assert lay_out([bar(7, 0, 10, (3.2, 0, 3), (10, 1, 1))], {})["pieces"] == [[0, 3, 1, 1, -1, 6]]
    assert lay_out([bar(7, 0, 10, (6, 0, 3), (10, 1, 1))], {})["pieces"] == [[0, 3, -1, 2, 1, 1, -1, 4]]


def test_bars_of_a_row_do_not_overlap() -> None:
    found = lay_out([bar(7, 0, 2), bar(8, 1.9, 4), bar(7, 1.9, 4, row=1)], {})
    assert found["bars"] == [[0, 7, 0, 2], [0, 8, 2, 2], [1, 7, 1.9, 2.1]]


def test_time_since_the_step_before_is_in_no_phase_as_far_as_the_phases_fit_into_the_step() -> None:
    found = lay_out([bar(7, 0, 1, (1, 0, 1)), bar(8, 5, 6, (6, 0, 1)), bar(9, 9, 10, (10, 0, 1), (10, 1, 2))], {})
    assert found["bars"] == [[0, 7, 0, 1], [0, 8, 1, 5], [0, 9, 6, 4]]
    assert found["pieces"] == [[0, 1], [-1, 4, 0, 1], [-1, 1, 0, 1, 1, 2]]
    found = lay_out([bar(7, 0, 1, (1, 0, 1)), bar(8, 5, 6, (6, 0, 1), attempt=1)], {})
    assert found["bars"] == [[0, 7, 0, 1], [0, 8, 5, 1]], "a restart is no time of a step"


def test_time_outside_of_phases_that_others_wait_for_comes_first() -> None:
    found = lay_out([bar(7, 10, 14, (14, 0, 1), (14, 1, 1))], {(0, 7): 1.5 * S})
    assert found["pieces"] == [[-1, 1.5, 0, 1, 1, 1, -1, 0.5]]
    found = lay_out([bar(7, 10, 14, (14, 0, 1), (14, 1, 1))], {(0, 7): 9 * S})
    assert found["pieces"] == [[-1, 2, 0, 1, 1, 1]]


def test_a_label_that_is_outside_of_phases_is_the_slowest_and_its_bar_begins_after_the_step_before(
    client: Client,
) -> None:
    found = read_timeline(client, TimelineRequest("apart", 59, 60))
    assert [bar for bar in found["bars"] if bar[1] == 60] == [[row, 60, 1, 11] for row in range(4)]
    [own] = [found["pieces"][at] for at, bar in enumerate(found["bars"]) if bar[:2] == [0, 60]]
    assert own == [-1, 10, 0, 0.1, 1, 0.3, 2, 0.5, -1, 0.1]
    expected = {"row": 0, "label": "rank0", "step": 60, "excess_s": 10.0, "is_outside": True}
    assert found["slowest"] == [expected]


def test_a_range_has_its_steps_in_wall_time_and_the_slowest_label_of_each(client: Client) -> None:
    found = read_timeline(client, TimelineRequest("slow", 399, 400))
    assert (found["phases"], found["width"], found["n_labels"]) == (["data", "forward", "backward"], 1, 8)
    assert [bar for bar in found["bars"] if bar[0] == 5] == [[5, 399, 0, 1], [5, 400, 1, 1]]
    assert found["pieces"][-1] == [0, 0.1, 1, 0.4, 2, 0.8]
    expected = {"row": 5, "label": "rank5", "step": 400, "excess_s": 0.3, "is_outside": False}
    assert found["slowest"] == [expected]


def test_a_long_range_is_added_up_to_what_its_pixels_can_show(client: Client) -> None:
    found = read_timeline(client, TimelineRequest("slow", 0, 999, columns=800))
    assert (found["width"], len(found["bars"])) == (16, 8 * 63)
    place = next(at for at, bar in enumerate(found["bars"]) if bar[:2] == [5, 416])
    assert found["pieces"][place][:4] == pytest.approx([0, 16 * 0.4, 1, 16 * 0.4])
    assert {row["label"] for row in found["slowest"]} == {"rank5"}


@pytest.mark.full
def test_without_a_range_the_last_steps_are_shown_and_many_labels_in_part(client: Client) -> None:
    found = read_timeline(client, TimelineRequest("wide", rows=16))
    assert (found["first"], found["last"], found["n_labels"]) == (4, 23, 1024)
    assert (found["labels"][0], len(found["labels"])) == ("rank777", 16)
    found = read_timeline(client, TimelineRequest("wide", rows=16, skip=16, order="rank", mark="rank3"))
    assert found["labels"] == ["rank3", *(f"rank{rank}" for rank in range(16, 31))]
    expected = {"row": None, "label": "rank777", "step": 17, "excess_s": 3.0, "is_outside": False}
    assert found["slowest"] == [expected]
    found = read_timeline(client, TimelineRequest("wide", order="slow", labels=("rank2", "rank1")))
    assert (found["labels"], found["n_labels"]) == (["rank1", "rank2"], 2)
    assert found["slowest"][0]["label"] == "rank777", "all labels are compared"
    assert read_timeline(client, TimelineRequest("alone"))["bars"] == []
