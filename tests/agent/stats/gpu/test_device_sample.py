"""What a reading collects, and what an error means."""

import pytest

from chiplog_agent.stats.gpu.device_sample import DeviceSample
from tests.support.gpu_sampler import GpuSampler


def test_slow_values_come_in_a_group_of_their_own_and_empty_groups_not_at_all() -> None:
    sample = DeviceSample(0.0, is_slow=True)
    assert sample.groups() == []
    sample.add(("b", "a"), (1.0, 2.0))
    assert sample.groups() == [(("b", "a"), (1.0, 2.0))]
    sample.add(("c",), (3.0,), slow=True)
    assert sample.groups() == [(("b", "a"), (1.0, 2.0)), (("c",), (3.0,))]
    with pytest.raises(ValueError, match="zip"):
        sample.add(("d",), ())


def test_an_error_is_final_or_passes_or_means_that_the_device_is_lost(node: GpuSampler) -> None:
    """By the numbers of nvml.h."""
    program = """
from chiplog_agent.stats.gpu.nvml import GpuLostError
meaning = {}
for code in range(30):
    try:
        meaning[code] = "final" if device().is_final(code) else "passes"
    except GpuLostError:
        meaning[code] = "lost"
show(meaning, device().is_instance, instance(0).is_instance)
"""
    meaning, *is_instance = node.ask(program)
    assert [code for code in meaning if meaning[code] == "lost"] == ["1", "9", "15"]
    assert [code for code in meaning if meaning[code] == "final"] == ["2", "3", "4", "13", "25", "26"]
    assert is_instance == [False, True]
