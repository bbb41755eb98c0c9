"""Samples of machines in buckets of time: a line for each device, or a band; rates of counters; marks."""

from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog_client.client import Client, connect
from chiplog_client.reads.system.system_curves import SystemRequest, read_names, read_system_curves
from tests.support.hand_written import hand_written
from tests.support.run_builder import RunBuilder, Sql
from tests.support.safeguard import proves
from tests.support.sampled_run import fill_sampled_run

FIRST = 1_767_322_800_000_000  # 2026-01-02 03:00:00 in µs
LAST = FIRST + 1_001_000_000


def fill(database: duckdb.DuckDBPyConnection) -> None:
    """Write the runs for the fixture `client`, and `counted`: its GPU 0 has counters of its throttled time."""
    fill_sampled_run(database)
    build = RunBuilder(database)
    build.run("counted")
    build.ranks("counted", 2, node="counted", gpus=[Sql("'GPU-C' || rank")], produced=1)
    mask = {"hw.gpu.throttle.reasons": "CASE WHEN step BETWEEN 10 AND 19 THEN 4 + 8 ELSE 0 END"}
    build.samples("p.gpus[1]", mask, steps=60, where="run_id = 'counted'")
    counters = {
        "hw.gpu.throttle.time.sw_power": "5 + 0.5 * least(greatest(step - 30, 0), 10) + 0.001 * step",  # 31 to 40
        "hw.gpu.throttle.time.hw_thermal": "CASE WHEN step >= 50 THEN step - 50 ELSE 7 + greatest(step - 30, 0) END",
        "hw.gpu.throttle.time.sw_thermal": "3",
    }
    build.samples("p.gpus[1]", counters, steps=60, where="run_id = 'counted' AND rank = 0")


def read_system_curve(client: Client, request: SystemRequest) -> dict[str, Any]:
    [curve] = read_system_curves(client, request)
    return curve


def test_each_device_has_a_line_under_the_name_of_its_label(client: Client) -> None:
    found = read_system_curve(client, SystemRequest("sampled", ("hw.gpu.utilization",), FIRST, LAST, 100))
    assert (found["kind"], found["width_s"], found["is_rate"]) == ("lines", 16, False)
    assert {line["label"]: set(line["mean"]) for line in found["lines"]} == {"rank0": {0.9}, "rank1": {0.5}}
    assert len(found["ts"]) <= 100
    assert found["ts"][0] == FIRST / 1000


def test_a_counter_is_shown_as_its_growth_per_second(client: Client) -> None:
    found = read_system_curve(client, SystemRequest("sampled", ("system.network.io.receive",), FIRST, LAST, 30))
    assert found["is_rate"] and [line["label"] for line in found["lines"]] == ["node-1-0", "node-1-1"]
    values = [value for value in found["lines"][0]["mean"] if value is not None]
    assert sum(values) / len(values) == pytest.approx(1000, rel=0.1)


def test_many_devices_are_a_band_that_names_its_extremes(client: Client) -> None:
    found = read_system_curve(client, SystemRequest("many", ("hw.gpu.utilization",), FIRST, LAST, 50))
    assert (found["kind"], found["n_labels"], set(found["n_present"])) == ("band", 20, {20})
    assert set(found["min_label"]) == {"rank7"}
    assert (set(found["min"]), set(found["median"])) == ({0.0}, {0.9})
    assert read_system_curve(client, SystemRequest("many", ("nothing",), FIRST, LAST, 50))["kind"] == "none"


@pytest.mark.full
def test_throttling_and_lost_gpus_are_marks_in_the_order_of_time(client: Client) -> None:
    found = read_names(client, "sampled")
    assert [(row["title"], row["n_devices"], row["flat"]) for row in found["names"]] == [
        *(("GPU utilization", 2, None), ("GPU power limit", 2, 700.0), ("Network received", 2, None))
    ]
    assert [(mark["kind"], mark["label"], mark["xid"], mark["message"]) for mark in found["marks"]] == [
        ("throttled", "rank1", None, "GPU-1-1 is throttled: HW thermal slowdown"),
        ("gpu.lost", "rank1", 79, "GPU-1-1 is lost: fell off the bus"),
    ]
    assert [(mark["words"], mark["step"]) for mark in found["marks"]] == [
        ("HW thermal slowdown", 248),
        ("lost XID 79", 398),
    ]
    assert found["steps"] == {"n": 1000, "first_step": 0, "last_step": 499, "seconds": 1000}
    assert found["labels"][1] == {"node": "node-1-1", "label": "rank1", "rank": 1, "gpus": ["GPU-1-1"]}
    assert found["n_marks"] == 2
    assert read_names(client, "unsampled") == {"names": [], "labels": [], "steps": None, "marks": [], "n_marks": 0}


@proves(
    "marks-by-counters", "the mask of a GPU counts only for reasons without a counter", part=" & ~coalesce(c.bits, 0)"
)
def test_throttling_begins_where_a_counter_of_its_time_grows_and_else_by_the_mask(client: Client) -> None:
    """A counter that grows by 0.1 % of the time throttles nothing, and one that starts again has not grown."""
    marks = read_names(client, "counted")["marks"]
    begin = min(mark["ts"] for mark in marks)
    assert [(mark["label"], (mark["ts"] - begin).total_seconds() + 10, mark["words"]) for mark in marks] == [
        ("rank0", 10, "HW slowdown"),
        ("rank1", 10, "SW power cap, HW slowdown"),
        ("rank0", 31, "SW power cap, HW thermal slowdown"),
        ("rank0", 51, "HW thermal slowdown"),
    ]


def test_of_too_many_marks_all_events_and_the_newest_throttling_are_kept(client: Client) -> None:
    found = read_names(client, "hot")
    marks = found["marks"]
    assert (len(marks), found["n_marks"]) == (500, 602)
    times = [(mark["ts"] - marks[0]["ts"]).total_seconds() + 1 for mark in marks]
    assert [time for time, mark in zip(times, marks, strict=True) if mark["kind"] == "gpu.lost"] == [1, 1200]
    assert times[1:] == [*range(205, 1200, 2), 1200], "in the order of time"


@proves(
    "sample-has-the-last-step",
    "a sample is beside the step that its node had reached",
    part="s.ts >= p.ts",
    new="s.ts <= p.ts",
)
def test_a_sample_has_the_last_step_that_its_node_had_logged(client: Client) -> None:
    by_step = SystemRequest("sampled", ("hw.gpu.utilization",), 100, 119, 100, is_by_step=True)
    found = read_system_curve(client, by_step)
    # A second before the sample of second 210 rank0 has logged step 104, and rank1 step 103.
    assert (found["width"], found["step"]) == (1, [103, 104, 108, 109, 113, 114, 118, 119])
    assert {line["label"] for line in found["lines"]} == {"rank0", "rank1"}
    pairs = SystemRequest("sampled", ("hw.gpu.utilization",), 100, 119, 100, is_by_step=True, lines_max=1, width=10)
    found = read_system_curve(client, pairs)
    assert (found["width"], found["n_present"], found["median"]) == (16, [2, 2], [pytest.approx(0.7)] * 2)
    wide = SystemRequest("sampled", ("system.network.io.receive",), -(1 << 63), (1 << 63) - 1, 30, is_by_step=True)
    assert read_system_curve(client, wide)["width"] == 32
    assert (
        read_system_curve(client, SystemRequest("many", ("hw.gpu.utilization",), 0, 9, is_by_step=True))["kind"]
        == "none"
    )


def test_chosen_labels_have_their_gpus_and_hosts(client: Client) -> None:
    def labels_of(name: str, **chosen: tuple[str, ...]) -> list[str]:
        found = read_system_curve(client, SystemRequest("sampled", (name,), FIRST, LAST, 30, **chosen))
        return [line["label"] for line in found["lines"]]

    assert labels_of("hw.gpu.utilization", labels=("rank1",)) == ["rank1"]
    assert labels_of("system.network.io.receive", labels=("rank1",)) == ["node-1-1"]
    assert labels_of("hw.gpu.utilization", nodes=("node-1-0",), labels=("rank1",)) == ["rank0", "rank1"]


def test_several_names_are_read_at_once_in_their_order(client: Client) -> None:
    names = ("system.network.io.receive", "nothing", "hw.gpu.utilization")
    found = read_system_curves(client, SystemRequest("sampled", names, FIRST, LAST, 30))
    assert [(curve["key"], curve["kind"], curve["is_rate"], curve["n_labels"]) for curve in found] == [
        ("system.network.io.receive", "lines", True, 2),
        ("nothing", "none", False, 0),
        ("hw.gpu.utilization", "lines", False, 2),
    ]


def test_the_step_of_an_event_is_the_one_that_its_label_had_begun(tmp_path: Path) -> None:
    """As in the view gpu_events: at second 5.5 step 5 has begun, and step 4 is the newest that was logged."""
    with hand_written(tmp_path) as database:
        build = RunBuilder(database)
        build.run("r")
        build.ranks("r", 1, node="n", agent_node="n", gpus=["GPU-0"], produced=1)
        build.phases({"step": 1}, steps=10, at="step + 1")
        body = {"device": "GPU-0", "code": 79}
        build.event("gpu.xid", "XID 79", level="error", body=body, seq=90, at=5.5)
    with connect(dir=tmp_path, start=False) as client:
        assert [mark["step"] for mark in read_names(client, "r")["marks"]] == [5]
        assert client.sql("SELECT step FROM gpu_events").rows() == [{"step": 5}]
