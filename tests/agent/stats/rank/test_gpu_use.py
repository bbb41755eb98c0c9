"""GPU memory and time of ranks: sums over their trees and devices, and nothing that is unknown or old."""

import os
import time

import pytest

from chiplog_agent.stats.gpu.processes import DeviceUse
from chiplog_agent.stats.rank.gpu_use import _FRESH_S, RankGpuUse
from chiplog_agent.stats.rank.process_tree import ProcessStats
from chiplog_agent.stats.source import Reading
from tests.support.safeguard import proves

OWN, CHILD, STRANGER = 10, 11, 99


class _Trees(ProcessStats):
    """One rank with a child."""

    def trees(self):  # type: ignore[no-untyped-def]
        return {OWN: {OWN: None, CHILD: None}}


def read(*uses: DeviceUse) -> dict[str, float]:
    source = RankGpuUse(_Trees())
    for number, use in enumerate(uses):
        source.put(f"GPU-{number}", use, time.monotonic())
    readings = source.read()
    assert all(reading.device == f"pid:{OWN}" for reading in readings)
    return {name: value for reading in readings for name, value in zip(reading.names, reading.values, strict=True)}


def test_a_rank_has_the_sum_of_its_processes_on_all_devices_and_nothing_of_a_stranger() -> None:
    uses = [
        DeviceUse({OWN: 500, CHILD: 100, STRANGER: 7000}, {OWN: 0.5, CHILD: 0.25, STRANGER: 0.25}),
        DeviceUse({CHILD: 30, STRANGER: 1}, {STRANGER: 1.0}),
    ]
    assert read(*uses) == pytest.approx({"process.gpu.memory.usage": 630.0, "process.gpu.utilization": 0.75})


@proves(
    "unknown-gpu-memory-absent",
    "GPU memory that the driver does not know is absent",
    part="min(memory) >= 0",
    new="True",
)
def test_memory_that_the_driver_does_not_know_is_absent_and_not_0() -> None:
    assert read(DeviceUse({OWN: 500, CHILD: -1}, {OWN: 0.5})) == {"process.gpu.utilization": 0.5}


def test_time_that_one_device_does_not_tell_is_absent() -> None:
    assert read(DeviceUse({OWN: 5}, {OWN: 0.5}), DeviceUse({OWN: 6}, None)) == {"process.gpu.memory.usage": 11.0}


def test_a_rank_that_uses_no_gpu_is_absent() -> None:
    assert read() == read(DeviceUse({}, None)) == read(DeviceUse({STRANGER: 1}, {STRANGER: 0.1})) == {}


def test_what_a_device_reported_before_it_hung_or_went_is_not_repeated() -> None:
    source = RankGpuUse(_Trees())
    source.put("GPU-0", DeviceUse({OWN: 1}, None), time.monotonic() - _FRESH_S - 1.0)
    assert source.read() == []
    source.put("GPU-0", DeviceUse({OWN: 1}, None), time.monotonic())
    assert source.read() == [Reading(f"pid:{OWN}", ("process.gpu.memory.usage",), (1.0,))]
    source.drop("GPU-0")
    assert source.read() == []


def test_by_a_long_interval_what_came_since_the_last_reading_counts() -> None:
    source = RankGpuUse(_Trees())
    source._read_at = time.monotonic() - 3600.0
    source.put("GPU-0", DeviceUse({OWN: 1}, None), source._read_at + 0.1)
    assert len(source.read()) == 1
    assert source.read() == []


def test_trees_are_those_of_the_watched_ranks() -> None:
    processes = ProcessStats()
    processes.watch([os.getpid()])
    processes.read()
    assert os.getpid() in processes.trees()[os.getpid()]
