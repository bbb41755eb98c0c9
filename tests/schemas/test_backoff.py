"""Waits between retries: they double up to a bound, begin again after a success, and are spread."""

import pytest

from chiplog_schemas.backoff import Backoff, half_to_whole


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_success_begins_with_the_shortest_wait_again() -> None:
    backoff = Backoff(0.5, 3.0)
    backoff.next_s(), backoff.next_s()
    assert backoff.wait_s == 2.0
    backoff.reset()
    assert (backoff.wait_s, backoff.next_s(), backoff.next_s()) == (0.5, 0.5, 1.0)


def test_jitter_spreads_each_wait_and_not_the_next() -> None:
    factors = iter([0.5, 0.75, 1.0])
    backoff = Backoff(1.0, 8.0, lambda: next(factors))
    assert [backoff.next_s() for _ in range(3)] == [0.5, 1.5, 4.0]


def test_the_longest_wait_may_change_between_waits() -> None:
    backoff = Backoff(1.0, 60.0)
    for _ in range(4):
        backoff.next_s()
    backoff.max_s = 3.0
    assert (backoff.next_s(), backoff.next_s()) == (16.0, 3.0)


def test_processes_that_lost_the_same_peer_wait_differently() -> None:
    factors = {half_to_whole() for _ in range(100)}
    assert len(factors) > 90
    assert 0.5 <= min(factors) < max(factors) <= 1.0
    assert max(factors) - min(factors) == pytest.approx(0.5, abs=0.2)
