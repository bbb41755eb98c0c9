"""GPUs through the real pynvml and a small libnvidia-ml.so.1 that can fail and hang on demand."""

import os
import subprocess
import sys

import pytest

from chiplog_agent.stats.frames import MigDevice
from chiplog_agent.stats.gpu.device import FIELDS
from chiplog_agent.stats.sampler_process import (
    Holders,
)
from tests.support.gpu_sampler import GPU0, GPU1, GpuSampler, lines, of, tables
from tests.support.safeguard import proves

MIG = [f"MIG-00000001-0000-0000-0000-00000000000{number}" for number in range(2)]


def test_every_metric_comes_in_its_unit(node: GpuSampler) -> None:
    node.feed.start()
    first = of(node.run(lambda messages: len(of(messages, GPU0)) >= 2), GPU0)
    values = {name: value for sample in first for name, value in zip(sample.names, sample.values, strict=True)}
    assert values == pytest.approx(
        {
            "hw.gpu.utilization": 0.75,
            "hw.gpu.memory.usage": 10 * 2**30,
            "hw.gpu.memory.limit": 80 * 2**30,
            "hw.power": 250.0,  # field 186 is missing there: nvmlDeviceGetPowerUsage took its place
            "hw.power.limit": 700.0,
            "hw.energy": 123456.789,
            "hw.temperature.core": 61.0,
            "hw.temperature.memory": 72.0,
            "hw.gpu.clock.sm": 1.98e9,
            "hw.gpu.clock.mem": 2.619e9,
            "hw.gpu.throttle.reasons": 0x44,
            "hw.errors.ecc_corrected": 7.0,
            "hw.errors.ecc_uncorrected": 1.0,
        }
    )


def test_fields_are_read_by_one_call_and_slow_ones_come_apart(node: GpuSampler) -> None:
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, GPU0)) >= 8)
    names = [sample.names for sample in of(messages, GPU0)]
    assert len(set(names)) == 2  # one group each period, and one with the slow metrics
    assert names.count(("hw.errors.ecc_corrected", "hw.errors.ecc_uncorrected")) == 1
    os.kill(node.feed.pid or 0, 19)  # SIGSTOP: the counts below must not move
    fast = len(names) - 1
    assert fast <= len(node.calls.read_bytes()) <= fast + 5  # samples under way at the stop


def test_field_numbers_are_those_of_pynvml() -> None:
    code = (
        "import pynvml as p; print(p.NVML_FI_DEV_POWER_INSTANT, p.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, "
        "p.NVML_FI_DEV_MEMORY_TEMP, p.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, p.NVML_FI_DEV_ECC_DBE_VOL_TOTAL)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [field.number for field in FIELDS] == [int(number) for number in printed.split()]


def test_unsupported_metrics_are_told_once_and_left_out(node: GpuSampler) -> None:
    node.tell("bare1")
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, GPU1)) >= 4)
    assert {sample.names for sample in of(messages, GPU1)} == {("hw.gpu.memory.usage", "hw.gpu.memory.limit")}
    told = [text for text in lines(messages) if GPU1 in text]
    assert len(told) == 1 and "hw.temperature.memory" in told[0] and "hw.gpu.memory.usage" not in told[0]
    assert "hw.power" in of(messages, GPU0)[0].names


def test_mig_instances_are_devices_of_their_own(node: GpuSampler) -> None:
    node.tell("mig1")
    node.feed.start()
    devices = (*MIG, GPU0, GPU1)
    messages = node.run(lambda found: all(len(of(found, uuid)) >= 2 for uuid in devices) and bool(tables(found)))
    assert {sample.names for sample in of(messages, MIG[0])} == {("hw.gpu.memory.usage", "hw.gpu.memory.limit")}
    [table] = tables(messages)
    assert table.gpus[0].instances == ()
    assert table.gpus[1].instances == (MigDevice(MIG[0], 3, 0), MigDevice(MIG[1], 4, 0))


@proves(
    "bare-context-is-incidental",
    "a bare context on another GPU makes it not a rank's",
    part="_INCIDENTAL_SHARE",
    new="0",
)
def test_the_gpus_that_a_ranks_processes_use_are_told_when_they_change(node: GpuSampler) -> None:
    """Its child trains on GPU 1; the first GPU holds a bare context by mistake. A stranger is on both."""
    code = "import subprocess, sys; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            child = int(rank.stdout.readline())
            node.tell(f"pid0={rank.pid}:500 pid1={child}:20000 pid0={os.getpid()}:9000 pid1={os.getpid()}:9000")
            node.feed.watch([rank.pid])
            node.feed.start()
            messages = node.run(lambda messages: Holders(rank.pid, (GPU1,)) in messages)
            node.tell(f"pid0={rank.pid}:20000 pid1={child}:20000")
            node.run(lambda messages: Holders(rank.pid, (GPU0, GPU1)) in messages)
            node.tell("")
            messages = node.run(lambda messages: Holders(rank.pid, ()) in messages)
            assert [message for message in messages if isinstance(message, Holders)] == [Holders(rank.pid, ())]
        finally:
            os.kill(child, 9)
            rank.kill()
