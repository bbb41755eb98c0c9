"""Intervals behave as the set of integers that they represent."""

from hypothesis import given
from hypothesis import strategies as st

from chiplog_schemas.model.intervals import Intervals, runs_of

ranges = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def numbers(pairs: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in pairs for number in range(first, last + 1)}


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "missing"]), ranges), max_size=30))
def test_intervals_are_a_set(steps: list[tuple[str, tuple[int, int]]]) -> None:
    # Model: a Python set. Invariant after each step: same members, disjoint, sorted, adjacent ones joined.
    intervals, model = Intervals(), set[int]()
    for step, (first, last) in steps:
        wanted = set(range(first, last + 1))
        if step == "add":
            assert numbers(intervals.add(first, last)) == wanted - model
            model |= wanted
        elif step == "remove":
            intervals.remove(first, last)
            model -= wanted
        else:
            assert numbers(intervals.missing(first, last)) == wanted - model
        pairs = list(intervals)
        assert pairs == runs_of(sorted(model))
        assert len(intervals) == len(pairs)
        assert intervals.total == len(model)
        assert intervals.end == max(model, default=-1) + 1
        assert [number in intervals for number in range(80)] == [number in model for number in range(80)]


@given(st.lists(ranges, max_size=20))
def test_the_order_of_adding_does_not_matter(pairs: list[tuple[int, int]]) -> None:
    assert Intervals(pairs) == Intervals(reversed(pairs))


@given(st.lists(ranges, max_size=10), ranges)
def test_missing_parts_come_in_order_and_do_not_touch(pairs: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    missing = Intervals(pairs).missing(*asked)
    assert missing == runs_of(sorted(numbers(missing)))


def test_a_range_that_continues_the_last_one_joins_it() -> None:
    intervals = Intervals([(0, 4)])
    assert intervals.add(5, 9) == [(5, 9)]
    assert list(intervals) == [(0, 9)]


def test_intervals_cannot_be_a_key() -> None:
    assert Intervals.__hash__ is None
