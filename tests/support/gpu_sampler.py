"""A sampler process with a small libnvidia-ml.so.1 that can fail and hang on demand, and what it sends."""

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chiplog_agent.stats.sampler_process import (
    DeviceEvent,
    Gpus,
    Message,
    Sample,
    SamplerLog,
    SamplerProcess,
)
from tests.support.waiting import TIMES

WAIT_S = 40.0 * TIMES  # generous, and still shorter than the library hangs
GPU0 = "GPU-00000000-0000-0000-0000-000000000000"
GPU1 = "GPU-00000000-0000-0000-0000-000000000001"
GPU2 = "GPU-00000000-0000-0000-0000-000000000002"
SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.c"

# What the programs of `GpuSampler.ask` begin with.
_BEGIN = """
import json, os, time
import pynvml
from chiplog_agent.stats.gpu.device_sample import DeviceSample, NvmlDevice

def tell(words):
    with open(os.environ["FAKE_NVML_CONTROL"], "w") as control:
        control.write(words)
    time.sleep(0.01)  # the library reads it again after 5 ms

def device(index=0):
    return NvmlDevice(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))

def instance(number):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
    handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
    return NvmlDevice(pynvml, handle, parent=gpu, gpu_instance=pynvml.nvmlDeviceGetGpuInstanceId(handle))

def values(sample):
    return {name: value for group in sample.groups() for name, value in zip(*group)}

def show(*what):
    print(json.dumps(what))

pynvml.nvmlInit()
"""


def compile_library(folder: Path) -> None:
    """Build the replacement library for NVML in a folder."""
    output = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(output), str(SOURCE)], check=True)


class GpuSampler:
    """A sampler with the library; `tell` orders failures."""

    def __init__(self, folder: Path) -> None:
        self.control = folder / "control"
        self.calls = folder / "calls"
        self.shutdowns = folder / "shutdowns"
        self.control.write_text("")
        self.messages: list[Message] = []
        self.known = folder / "known-gpus.json"
        self.feed = SamplerProcess(period_s=0.1, known_gpus=self.known)

    def tell(self, words: str) -> None:
        self.control.write_text(words)

    def ask(self, program: str) -> Any:
        """Run a program that calls NVML by itself, and return what it shows. It may use the names of _BEGIN."""
        command = [sys.executable, "-c", _BEGIN + program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run(self, until: Callable[[list[Message]], bool]) -> list[Message]:
        """Read until something is true of what this call has read, and return that."""
        return collect(self.feed, until)


def collect(feed: SamplerProcess, until: Callable[[list[Message]], bool], *, ticks: bool = False) -> list[Message]:
    """Read until something is true of all that was read; fail after a generous while."""
    messages: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while not until(messages):
        assert time.monotonic() < deadline, messages[-20:]
        select.select([feed.fileno()], [], [], 0.05)
        messages += feed.read()
        if ticks:
            feed.tick(time.monotonic())
    return messages


def of(messages: list[Message], device: str = "") -> list[Sample]:
    """Return the samples of a device; '' is the host."""
    return [message for message in messages if isinstance(message, Sample) and message.device == device]


def lines(messages: list[Message]) -> list[str]:
    """Return the lines of the sampler's log, without those about what this machine lacks beside GPUs."""
    found = [message.text for message in messages if isinstance(message, SamplerLog)]
    return [text for text in found if not text.startswith(("rdma.", "system.", "cgroup.", "process."))]


def tables(messages: list[Message]) -> list[Gpus]:
    """Return the tables of GPUs."""
    return [message for message in messages if isinstance(message, Gpus)]


def events(messages: list[Message], kind: str, device: str) -> list[DeviceEvent]:
    """Return the events of a kind about a device."""
    found = [message for message in messages if isinstance(message, DeviceEvent)]
    return [message for message in found if (message.kind, message.device) == (kind, device)]
