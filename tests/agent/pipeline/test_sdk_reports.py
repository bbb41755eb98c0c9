"""What ranks report of their SDK: hostile values, and sums that never fall."""

from typing import Any

import pytest

from chiplog_agent.pipeline.sdk_reports import SdkReports
from chiplog_schemas.model.system_metrics import SDK_METRICS

EVENTS, JOURNAL, OLDEST = "chiplog.sdk.events", "chiplog.sdk.journal", "chiplog.sdk.journal_oldest"
A, B = b"a" * 16, b"b" * 16


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), True, "7", None, [1], {}])
def test_only_known_names_with_numbers_are_taken(value: Any) -> None:
    reports = SdkReports()
    reports.take(A, {EVENTS: value, "chiplog.agent.spool": 1.0, 7: 1.0, b"x": 1.0, OLDEST: 2})
    assert reports.of([A, B]) == {OLDEST: 2.0}
    assert reports.totals({A}) == {}, "no counter was reported"


def test_counters_of_ended_ranks_stay_and_gauges_are_those_of_the_present() -> None:
    reports = SdkReports()
    reports.take(A, {EVENTS: 5, JOURNAL: 100, OLDEST: 3})
    reports.take(B, {EVENTS: 7, JOURNAL: 200, OLDEST: 1})
    totals = reports.totals({A, B})
    assert totals.keys() == {name for name in SDK_METRICS if SDK_METRICS[name].is_counter} | {JOURNAL, OLDEST}
    assert (totals[EVENTS], totals[JOURNAL], totals[OLDEST]) == (12, 300, 3)
    reports.take(A, {EVENTS: 6, JOURNAL: 150, OLDEST: 0})
    assert (reports.totals({A, B})[EVENTS], reports.totals({B})[JOURNAL]) == (13, 200)
    reports.forget(A)
    assert (reports.totals({B})[EVENTS], reports.totals({B})[OLDEST]) == (13, 1)


def test_a_counter_that_falls_takes_nothing_away() -> None:
    reports = SdkReports()
    reports.take(A, {EVENTS: 5})
    reports.take(A, {EVENTS: 2})
    assert reports.totals({A})[EVENTS] == 5
