"""What ranks report of their SDK: hostile values, and sums that never fall."""

from typing import Any

import pytest

from chiplog_agent.pipeline.sdk_reports import SdkReports
from chiplog_schemas.model.system_metrics import SDK_METRICS

EVENTS, JOURNAL, OLDEST = "chiplog.sdk.events", "chiplog.sdk.journal", "chiplog.sdk.journal_oldest"
A, B = b"a" * 16, b"b" * 16


@pytest.mark.parametrize(
    "value", [-1.0, float("nan"), float("inf"), 1e308, -1e308, (1 << 63) + 4096, True, "7", None, [1], {}]
)
def test_only_known_names_with_numbers_are_taken(value: Any) -> None:
    reports = SdkReports()
    reports.take(A, {EVENTS: value, "chiplog.agent.spool": 1.0, 7: 1.0, b"x": 1.0, OLDEST: 2}, 0.0)
    assert reports.of([A, B]) == {OLDEST: 2.0}
    assert reports.totals({A}) == {}, "no counter was reported"


def test_counters_of_ended_ranks_stay_and_gauges_are_those_of_the_present() -> None:
    reports = SdkReports()
    reports.take(A, {EVENTS: 5, JOURNAL: 100, OLDEST: 3}, 0.0)
    reports.take(B, {EVENTS: 7, JOURNAL: 200, OLDEST: 1}, 0.0)
    totals = reports.totals({A, B})
    assert totals.keys() == {name for name in SDK_METRICS if SDK_METRICS[name].is_counter} | {JOURNAL, OLDEST}
    assert (totals[EVENTS], totals[JOURNAL], totals[OLDEST]) == (12, 300, 3)
    reports.take(A, {EVENTS: 6, JOURNAL: 150, OLDEST: 0}, 10.0)
    assert (reports.totals({A, B})[EVENTS], reports.totals({B})[JOURNAL]) == (13, 200)
    reports.forget(A)
    assert (reports.totals({B})[EVENTS], reports.totals({B})[OLDEST]) == (13, 1)


def test_a_counter_that_falls_takes_nothing_away() -> None:
    reports = SdkReports()
    reports.take(A, {EVENTS: 5}, 0.0)
    reports.take(A, {EVENTS: 2}, 10.0)
    assert reports.totals({A})[EVENTS] == 5


def test_a_report_that_follows_another_one_of_its_rank_too_soon_is_ignored() -> None:
    reports = SdkReports()
    times = (3.0, 3.0, 7.9, 8.0, 12.9, 13.0)
    assert [reports.take(A, {EVENTS: at}, at) for at in times] == [True, False, False, True, False, True]
    assert reports.take(B, {EVENTS: 1}, 13.0), "each rank has its own interval"
    assert reports.totals({A, B})[EVENTS] == 14
    reports.forget(A)
    assert not reports._taken_at.keys() & {A}
