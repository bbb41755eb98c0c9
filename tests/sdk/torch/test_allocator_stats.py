"""The allocator's statistics, from a substitute for torch.cuda with the keys of memory_stats."""

from types import SimpleNamespace
from typing import Any

import pytest

from chiplog.torch.allocator_stats import sample


def stats(allocated: int, reserved: int) -> dict[str, Any]:
    return {
        "allocated_bytes": {"all": {"current": allocated, "peak": allocated + 1}},
        "reserved_bytes": {"all": {"current": reserved, "peak": reserved + 1 if reserved else 0}},
        "num_alloc_retries": 2,
        "num_ooms": 1,
    }


def cuda(*devices: dict[str, Any], is_initialized: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        is_initialized=lambda: is_initialized,
        device_count=lambda: len(devices),
        memory_stats_as_nested_dict=lambda device: devices[device],
    )


def test_nothing_is_asked_before_cuda_is_initialised() -> None:
    assert sample(cuda(stats(1, 2), is_initialized=False)) == {}


def test_one_device_needs_no_number_and_fragmentation_is_what_is_reserved_and_not_allocated() -> None:
    assert sample(cuda(stats(30, 40), stats(0, 0))) == {
        "chiplog/cuda/allocated_bytes": 30.0,
        "chiplog/cuda/allocated_peak_bytes": 31.0,
        "chiplog/cuda/reserved_bytes": 40.0,
        "chiplog/cuda/reserved_peak_bytes": 41.0,
        "chiplog/cuda/fragmentation": 0.25,
        "chiplog/cuda/alloc_retries": 2.0,
        "chiplog/cuda/ooms": 1.0,
    }


def test_several_devices_are_told_apart_by_their_keys() -> None:
    found = sample(cuda(stats(1, 2), {}, stats(3, 4)))
    assert found["chiplog/cuda:0/allocated_bytes"] == 1.0
    assert found["chiplog/cuda:2/allocated_bytes"] == 3.0
    assert not any(name.startswith("chiplog/cuda:1/") for name in found), "it has no memory of this process"


def test_the_allocators_statistics_have_keys_that_ranks_share() -> None:
    used = {
        "allocated_bytes": {"all": {"current": 60, "peak": 80}},
        "reserved_bytes": {"all": {"current": 100, "peak": 100}},
        "num_alloc_retries": 1,
        "num_ooms": 0,
    }
    unused = {**used, "reserved_bytes": {"all": {"current": 0, "peak": 0}}}
    found = sample(cuda(unused, used, unused))
    assert found["chiplog/cuda/fragmentation"] == pytest.approx(0.4)
    assert (found["chiplog/cuda/allocated_peak_bytes"], found["chiplog/cuda/alloc_retries"]) == (80.0, 1.0)
    assert {key.split("/")[1] for key in sample(cuda(used, used, unused))} == {"cuda:0", "cuda:1"}
    assert sample(cuda(used, used, unused, is_initialized=False)) == {}
