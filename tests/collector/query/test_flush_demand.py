"""What queries demand of the index."""

import math
import mmap
import select
import threading
import time

import pytest

from chiplog_collector.query import flush_demand as demand_module
from chiplog_collector.query.flush_demand import FLUSH_SHARED_S, QueryDemand, is_queried
from chiplog_collector.query.suspect_queries import PAGE_BYTES, QUERIED_AT, RunningQueries, digest_of
from chiplog_schemas.limits import INDEX_FLUSH_INTERVAL_S, INDEX_FLUSH_INTERVAL_SLOW_S, QUERIED_FOR_S
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def is_woken(demand: QueryDemand) -> bool:
    return bool(select.select([demand], [], [], 0)[0])


def test_the_intervals_are_short_while_clients_ask_and_the_receiver_sees_it() -> None:
    clock = Clock()
    page = mmap.mmap(-1, PAGE_BYTES)
    demand = QueryDemand(page, clock)
    assert demand.flush_interval_s == INDEX_FLUSH_INTERVAL_SLOW_S
    assert not is_queried(page, clock.now)
    for _ in range(3):
        demand.ask()
        clock.now += QUERIED_FOR_S - 0.1
        assert demand.flush_interval_s == INDEX_FLUSH_INTERVAL_S
        assert is_queried(page, clock.now)
    clock.now += 0.1
    assert demand.flush_interval_s == INDEX_FLUSH_INTERVAL_SLOW_S
    assert not is_queried(page, clock.now)
    demand.close()


def test_a_query_wakes_the_writer_and_those_that_come_soon_after_it_share_its_flush() -> None:
    clock = Clock()
    demand = QueryDemand(clock=clock)
    assert demand.ask() == 1
    assert is_woken(demand)
    assert demand.ask() == 1, "it comes while the first one waits"
    number = demand.begin()
    assert not is_woken(demand)
    clock.now += FLUSH_SHARED_S - 0.01
    assert demand.ask() == 1
    demand.flushed(number)
    demand.wait(1, math.inf)
    assert not is_woken(demand)
    clock.now += 2 * FLUSH_SHARED_S
    assert demand.ask() == 2
    assert is_woken(demand)
    demand.close()


@proves("shared-flush-awaited", "a query that shares a flush waits until it is done")
def test_a_query_that_shares_a_flush_waits_until_it_is_done() -> None:
    demand = QueryDemand(clock=Clock())
    demand.ask()
    demand.flushed(demand.begin())
    number = demand.begin()  # at the end of the interval: no query demanded it
    assert demand.ask() == number
    waiting = threading.Thread(target=demand.wait, args=(number, math.inf))
    waiting.start()
    assert waiting.is_alive()
    demand.flushed(number)
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    demand.close()


@proves("one-query-waits-for-late-index", "only one query waits for an index that is behind", value="self._n_demanded")
def test_one_query_waits_for_an_index_that_is_behind_and_later_ones_do_not(monkeypatch) -> None:
    monkeypatch.setattr(demand_module, "FLUSH_WAIT_S", 0.01)
    clock = Clock()
    demand = QueryDemand(clock=clock)
    demand.wait(demand.ask(), math.inf)
    demand.begin()
    for _ in range(3):
        clock.now += 2 * FLUSH_SHARED_S
        assert demand.ask() == 0
    demand.flushed(demand.begin())
    clock.now += 2 * FLUSH_SHARED_S
    assert demand.ask() == 3
    demand.close()


@proves("flush-wait-bounded", "a query waits for a flush, but not forever", part=", max(0.0, wait_s)")
def test_a_query_waits_a_bounded_time(monkeypatch) -> None:
    monkeypatch.setattr(demand_module, "FLUSH_WAIT_S", 0.05)
    demand = QueryDemand()
    number = demand.ask()
    waits = [
        threading.Thread(target=demand.wait, args=(number, until), daemon=True)
        for until in (math.inf, 0.0, time.monotonic() - 1.0)
    ]
    for wait in waits:
        wait.start()
    deadline = time.monotonic() + WAIT_S
    for wait in waits:
        wait.join(max(0.0, deadline - time.monotonic()))
    assert not any(wait.is_alive() for wait in waits)
    demand.close()


def test_the_end_of_the_writer_lets_waiting_queries_continue() -> None:
    demand = QueryDemand()
    waiting = threading.Thread(target=demand.wait, args=(demand.ask(), math.inf))
    waiting.start()
    demand.close()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


@pytest.mark.parametrize("n_suspects", [0, 100])
def test_the_time_of_the_newest_query_has_its_own_place_on_the_page(n_suspects) -> None:
    page = bytearray(PAGE_BYTES)
    QueryDemand(page, lambda: 5.0).ask()
    before = page[QUERIED_AT:]
    for number in range(n_suspects):  # each process ends during a query
        RunningQueries(page).begin(digest_of(str(number), None))
    RunningQueries(page)
    assert page[QUERIED_AT:] == before
    assert len(before) == PAGE_BYTES - QUERIED_AT > 8


def test_queries_of_an_index_that_was_started_for_them_wait_longer_for_its_first_flush(monkeypatch) -> None:
    monkeypatch.setattr(demand_module, "FLUSH_WAIT_S", 0.01)
    demand = QueryDemand(first_wait_s=3 * WAIT_S)
    number = demand.ask()
    waiting = threading.Thread(target=demand.wait, args=(number, math.inf))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive(), "the index has not caught up"
    demand.flushed(demand.begin())
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    demand.wait(number + 1, math.inf)  # a later flush: the usual bound
    demand.close()
