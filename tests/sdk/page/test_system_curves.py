"""Samples of machines in buckets of time: a line for each device, or a band; rates of counters; marks."""

from collections.abc import Iterator

import pytest

from chiplog.page.system_curves import read_names, read_system_curve
from chiplog.query.client import Client, connect
from tests.support.hand_written import hand_written
from tests.support.sampled_run import fill_sampled_run

FIRST = 1_767_322_800_000_000  # 2026-01-02 03:00:00 in µs
LAST = FIRST + 1_001_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("sampled")
    with hand_written(root) as database:
        fill_sampled_run(database)
    with connect(dir=str(root), start=False) as client:
        yield client


def test_each_device_has_a_line_under_the_name_of_its_label(client: Client) -> None:
    found = read_system_curve(client, "sampled", "hw.gpu.utilization", FIRST, LAST, 100)
    assert (found["kind"], found["width_s"], found["is_rate"]) == ("lines", 16, False)
    assert {line["label"]: set(line["mean"]) for line in found["lines"]} == {"rank0": {0.9}, "rank1": {0.5}}
    assert len(found["ts"]) <= 100
    assert found["ts"][0] == FIRST / 1000


def test_a_counter_is_shown_as_its_growth_per_second(client: Client) -> None:
    found = read_system_curve(client, "sampled", "system.network.receive", FIRST, LAST, 30)
    assert found["is_rate"] and [line["label"] for line in found["lines"]] == ["node-1-0", "node-1-1"]
    values = [value for value in found["lines"][0]["mean"] if value is not None]
    assert sum(values) / len(values) == pytest.approx(1000, rel=0.1)


def test_many_devices_are_a_band_that_names_its_extremes(client: Client) -> None:
    found = read_system_curve(client, "many", "hw.gpu.utilization", FIRST, LAST, 50)
    assert (found["kind"], found["n_labels"][0]) == ("band", 20)
    assert set(found["min_label"]) == {"rank7"}
    assert (set(found["min"]), set(found["median"])) == ({0.0}, {0.9})
    assert read_system_curve(client, "many", "nothing", FIRST, LAST, 50)["kind"] == "none"


def test_throttling_and_lost_gpus_are_marks_in_the_order_of_time(client: Client) -> None:
    found = read_names(client, "sampled")
    assert [(row["name"], row["n_devices"]) for row in found["names"]] == [
        *(("hw.gpu.utilization", 2), ("system.network.receive", 2))
    ]
    assert [(mark["kind"], mark["label"], mark["xid"], mark["message"]) for mark in found["marks"]] == [
        ("throttled", "rank1", None, "GPU-1-1 is throttled: too hot (hardware)"),
        ("gpu.lost", "rank1", 79, "GPU-1-1 is lost: fell off the bus"),
    ]
    assert read_names(client, "unsampled") == {"names": [], "marks": []}
