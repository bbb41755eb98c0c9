"""A run keeps as many alerts as people can read, and reports the number of the others."""

import json
from collections import Counter

import chiplog
from chiplog.recording.log.alerts import ALERT_BURST, ALERT_INTERVAL_S, ALERTS_PER_MINUTE, TITLES_MAX, AlertLimit
from chiplog_schemas.model.events import EventKind


def test_one_title_has_its_burst_and_then_one_in_an_interval() -> None:
    limit = AlertLimit()
    assert sum(limit.allow("loss is NaN", 1000.0) for _ in range(50)) == ALERT_BURST
    assert limit.allow("another", 1000.0), "what one title says too often costs the others nothing"
    assert not limit.allow("loss is NaN", 1000.0 + ALERT_INTERVAL_S / 2)
    assert limit.allow("loss is NaN", 1000.0 + ALERT_INTERVAL_S)
    assert not limit.allow("loss is NaN", 1000.0 + ALERT_INTERVAL_S)
    assert limit.take_suppressed(2000.0) == (50 - ALERT_BURST + 2, {"loss is NaN": 50 - ALERT_BURST + 2})
    assert limit.take_suppressed() is None, "reported once"


def test_titles_that_are_new_each_time_have_a_bound_together_and_cost_no_memory() -> None:
    limit = AlertLimit()
    n = 3 * TITLES_MAX
    assert sum(limit.allow(f"step {step}", 1000.0) for step in range(n)) == ALERTS_PER_MINUTE
    assert len(limit._titles) <= TITLES_MAX + 1
    report = limit.take_suppressed()
    assert report is not None
    count, told = report
    assert count == n - ALERTS_PER_MINUTE == sum(told.values())
    assert len(told) <= 21
    assert sum(limit.allow(f"later {step}", 1060.0) for step in range(n)) == ALERTS_PER_MINUTE


def test_a_loop_that_alerts_leaves_a_few_rows_and_one_that_counts_the_rest(offline) -> None:
    run = chiplog.init(mode="offline")
    for step in range(500):
        run.alert("loss is NaN", f"step {step}", level="error")
    run.alert("disk", "nearly full")
    run.finish()
    run.alert("too late")
    notices = [event.fields for event in offline(EventKind.NOTICE)]
    kept = Counter(n["message"] for n in notices if n["notice"] == "alert")
    told = [n["body"] for n in notices if n["notice"] == "alerts_suppressed"]
    # On a slow machine the loop lasts so long that some more are kept, and the others are counted in several rows.
    assert ALERT_BURST <= kept["loss is NaN"] < 100 and kept["disk"] == 1
    assert all(body["titles"] == {"loss is NaN": body["count"]} for body in told)
    assert sum(body["count"] for body in told) == 500 - kept["loss is NaN"]
    assert json.dumps(told)
