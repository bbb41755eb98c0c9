"""Calls: each value in its unit, and what takes the place of a call that a driver lacks."""

from tests.support.gpu_sampler import GpuSampler

BEGIN = """
from chiplog_agent.stats.gpu.calls import RETIRED_PAGES, CallReader

def read(reader, *, slow=True):
    sample = DeviceSample(0.0, is_slow=slow)
    reader.read(sample)
    return sample
"""


def test_memory_by_version_2_has_what_the_driver_reserves_apart(node: GpuSampler) -> None:
    names = ["hw.gpu.memory.usage", "hw.gpu.memory.reserved", "hw.gpu.memory.limit"]
    [found] = node.ask(BEGIN + "show(values(read(CallReader(device()))))")
    used, reserved, limit = (found[name] for name in names)
    assert (reserved, limit) == (479 << 20, 80 << 30)
    assert used == (10 << 30) - reserved


def test_a_driver_without_version_2_counts_reserved_memory_as_used(node: GpuSampler) -> None:
    node.tell("old")
    found, lacks = node.ask(BEGIN + "sample = read(CallReader(device())); show(values(sample), sample.unsupported)")
    assert found["hw.gpu.memory.usage"] == 10 << 30 and found["hw.gpu.memory.limit"] == 80 << 30
    assert "hw.gpu.memory.reserved" not in found and lacks == ["hw.gpu.memory.reserved"]


def test_utilizations_are_shares_and_slow_ones_are_read_when_they_are_due(node: GpuSampler) -> None:
    program = "reader = CallReader(device()); show(values(read(reader, slow=False)), values(read(reader)))"
    fast, all_due = node.ask(BEGIN + program)
    assert (fast["hw.gpu.utilization"], fast["hw.gpu.memory.utilization"]) == (0.75, 0.2)
    slow = {"hw.gpu.encoder.utilization": 0.25, "hw.gpu.decoder.utilization": 0.05}
    assert all_due == fast | slow


def test_retired_pages_are_counted_by_their_cause(node: GpuSampler) -> None:
    node.tell("retired0=3:1")
    [found] = node.ask(
        BEGIN + "reader = CallReader(device()); reader.extend([RETIRED_PAGES]); show(values(read(reader)))"
    )
    pages = {name.rpartition(".")[2]: value for name, value in found.items() if "retired" in name}
    assert pages == {"single_bit": 3.0, "double_bit": 1.0}


def test_a_mig_instance_has_its_memory_and_no_other_call(node: GpuSampler) -> None:
    node.tell("mig1")
    found, lacks = node.ask(BEGIN + "sample = read(CallReader(instance(0))); show(values(sample), sample.unsupported)")
    assert found == {
        "hw.gpu.memory.usage": ((10 << 30) - (479 << 20)) // 2,
        "hw.gpu.memory.limit": 40 << 30,
        "hw.gpu.memory.reserved": (479 << 20) // 2,
    }
    assert lacks == []
