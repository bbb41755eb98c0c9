"""GPM: shares between two samples, at least 100 ms apart, and nothing else fails with it."""

import pytest

from chiplog_agent.stats.gpu.gpm import GPM_METRICS, GPM_RATES, PAIR_MIN_S
from tests.support.gpu_sampler import GpuSampler

BEGIN = """
from chiplog_agent.stats.gpu.gpm import GPM_METRICS, GpmReader
import ctypes
live = ctypes.c_int.in_dll(ctypes.CDLL("libnvidia-ml.so.1"), "fake_gpm_samples")

def read(reader, now):
    sample = DeviceSample(now, is_slow=False)
    reader.read(sample)
    return sample
"""


def test_a_value_needs_two_samples_100_ms_apart_and_is_a_share(node: GpuSampler) -> None:
    node.tell("gpm0.5=40")
    program = """
reader = GpmReader(device())
found = [values(read(reader, now)) for now in (1.0, 1.05, 1.09, 1.15, 1.2, 1.3)]
held = live.value
reader.close()
show(found, held, live.value)
"""
    found, held, after = node.ask(BEGIN + program)
    shares = {name: (50 + number) / 100 for name, number in GPM_METRICS.items()} | {"hw.gpu.tensor.active": 0.4}
    for values, has_pair in zip(found, (False, False, False, True, False, True), strict=True):
        assert values == (pytest.approx(shares) if has_pair else {})
    assert (held, after) == (2, 0), "samples are used again, and freed at the end"
    assert PAIR_MIN_S == 0.1


def test_a_mig_instance_is_measured_by_its_gpu_instance(node: GpuSampler) -> None:
    node.tell("mig1 gpm1.2=40")
    program = "reader = GpmReader(instance(1)); read(reader, 1.0); show(values(read(reader, 2.0)))"
    assert node.ask(BEGIN + program)[0]["hw.gpu.sm.active"] == pytest.approx(0.2)


def test_a_gpu_before_hopper_lacks_all_of_it_once(node: GpuSampler) -> None:
    node.tell("gpm0=no")
    program = "reader = GpmReader(device()); show([read(reader, now).unsupported for now in (1.0, 2.0)], live.value)"
    (first, second), held = node.ask(BEGIN + program)
    assert first == list(GPM_METRICS) and second == [] and held == 0


def test_a_metric_that_the_device_lacks_is_left_out_alone(node: GpuSampler) -> None:
    node.tell("gpm0.11=no gpm0.12=fails")
    program = """
reader = GpmReader(device())
read(reader, 1.0)
found = [read(reader, now) for now in (2.0, 3.0)]
show([(sorted(values(sample)), sample.unsupported, sample.failures) for sample in found])
"""
    [first, second] = node.ask(BEGIN + program)[0]
    left = sorted(GPM_METRICS.keys() - {"hw.gpu.fp64.active", "hw.gpu.fp32.active"})
    assert first[:2] == [left, ["hw.gpu.fp64.active"]] and second[:2] == [left, []]
    assert [text.partition(":")[0] for text in first[2] + second[2]] == ["hw.gpu.fp32.active"] * 2


def test_a_failure_passes_and_the_next_pair_is_whole(node: GpuSampler) -> None:
    program = """
reader = GpmReader(device())
read(reader, 1.0)
tell("gpm0=fails")
failed = read(reader, 2.0)
tell("")
show(failed.failures, values(failed), values(read(reader, 3.0)), len(values(read(reader, 4.0))), live.value)
"""
    failures, failed, first, second, held = node.ask(BEGIN + program)
    assert len(failures) == 1 and failures[0].startswith("GPM: ")
    assert failed == first == {} and second == len(GPM_METRICS) and held == 2


def test_a_lost_gpu_is_lost_by_gpm_too(node: GpuSampler) -> None:
    program = """
from chiplog_agent.stats.gpu.nvml import GpuLostError
reader = GpmReader(device())
read(reader, 1.0)
tell("lost0")
try:
    read(reader, 2.0)
except GpuLostError as error:
    show(str(error))
"""
    assert node.ask(BEGIN + program) == ["GPU is lost"]


def test_gpm_numbers_are_those_of_pynvml(node: GpuSampler) -> None:
    names = ["SM_UTIL", "SM_OCCUPANCY", "ANY_TENSOR_UTIL", "DRAM_BW_UTIL", "FP64_UTIL", "FP32_UTIL", "FP16_UTIL"]
    names.append("GRAPHICS_UTIL")
    [numbers] = node.ask(f"show([getattr(pynvml, 'NVML_GPM_METRIC_' + name) for name in {names!r}])")
    assert numbers == list(GPM_METRICS.values())
    [rates] = node.ask("show([pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC])")
    assert dict(zip(("hw.gpu.io.pcie.transmit", "hw.gpu.io.pcie.receive"), rates, strict=True)) == GPM_RATES
