"""GPUs through the real pynvml and a small libnvidia-ml.so.1 of ours, which can fail and hang on demand."""

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.feed import Line, Message, Sample, SamplerFeed, Stale
from chiplog_agent.stats.gpu import FIELDS

WAIT_S = 40.0  # generous, and still shorter than the library hangs
GPU0 = "GPU-00000000-0000-0000-0000-000000000000"
GPU1 = "GPU-00000000-0000-0000-0000-000000000001"
SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.c"

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the library that stands in for NVML needs gcc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    output = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(output), str(SOURCE)], check=True)
    return folder


class Node:
    """A sampler beside the library; `tell` orders failures."""

    def __init__(self, folder: Path) -> None:
        self.control = folder / "control"
        self.calls = folder / "calls"
        self.control.write_text("")
        self.messages: list[Message] = []
        self.feed = SamplerFeed(period_s=0.1)

    def tell(self, words: str) -> None:
        self.control.write_text(words)

    def run(self, until: Callable[[list[Message]], bool]) -> list[Message]:
        """Read until something is true of what this call has read, and return that."""
        messages: list[Message] = []
        deadline = time.monotonic() + WAIT_S
        while not until(messages):
            assert time.monotonic() < deadline, messages[-20:]
            select.select([self.feed.fileno()], [], [], 0.05)
            messages += self.feed.read()
        return messages


@pytest.fixture
def node(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML_CONTROL", str(node.control))
    monkeypatch.setenv("FAKE_NVML_CALLS", str(node.calls))
    yield node
    node.feed.close()


def of(messages: list[Message], device: str) -> list[Sample]:
    return [message for message in messages if isinstance(message, Sample) and message.device == device]


def lines(messages: list[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, Line)]


def test_every_metric_comes_in_its_unit(node: Node) -> None:
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


def test_fields_are_read_by_one_call_and_slow_ones_come_apart(node: Node) -> None:
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


def test_unsupported_metrics_are_told_once_and_left_out(node: Node) -> None:
    node.tell("bare1")
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, GPU1)) >= 4)
    assert {sample.names for sample in of(messages, GPU1)} == {("hw.gpu.memory.usage", "hw.gpu.memory.limit")}
    told = [text for text in lines(messages) if GPU1 in text]
    assert len(told) == 1 and "hw.temperature.memory" in told[0] and "hw.gpu.memory.usage" not in told[0]
    assert "hw.power" in of(messages, GPU0)[0].names


def test_a_lost_gpu_goes_stale_while_the_other_goes_on_and_comes_back(node: Node) -> None:
    node.feed.start()
    names = of(node.run(lambda messages: len(of(messages, GPU0)) >= 2), GPU0)[0].names
    node.tell("lost0")
    messages = node.run(lambda messages: Stale(GPU0) in messages and len(of(messages, GPU1)) >= 8)
    messages += node.run(lambda messages: len(of(messages, GPU1)) >= 8)
    assert messages.count(Stale(GPU0)) == 1 and Stale(GPU1) not in messages
    assert any(GPU0 in text and "GPU is lost" in text for text in lines(messages))
    node.tell("")
    messages = node.run(lambda messages: bool(of(messages, GPU0)))
    assert of(messages, GPU0)[0].names == names


def test_a_hanging_gpu_goes_stale_and_stalls_neither_the_host_nor_the_other(node: Node) -> None:
    node.feed.start()
    node.run(lambda messages: bool(of(messages, GPU0)) and bool(of(messages, GPU1)))
    node.tell("hang1")
    messages = node.run(lambda messages: Stale(GPU1) in messages)
    messages += node.run(lambda messages: len(of(messages, "")) >= 10 and len(of(messages, GPU0)) >= 10)
    assert messages.count(Stale(GPU1)) == 1 and Stale(GPU0) not in messages


def test_a_start_of_nvml_that_hangs_is_told_and_host_samples_go_on(node: Node) -> None:
    node.tell("hang_init")
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, "")) >= 12)
    assert [text for text in lines(messages) if "has not finished its start" in text] == lines(messages)[:1]
    assert {message.device for message in messages if isinstance(message, Sample)} == {""}


@pytest.mark.parametrize("words", ["no_driver", "no_permission"])
def test_a_node_without_usable_nvml_says_why_in_one_line(node: Node, words: str) -> None:
    node.tell(words)
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, "")) >= 5 and bool(lines(messages)))
    assert len(lines(messages)) == 1 and lines(messages)[0].startswith("hw.* is absent: NVML cannot be initialised")


def test_a_node_without_the_library_says_so_in_one_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    try:
        import ctypes

        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a GPU and its driver: nothing is absent here")
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, "")) >= 5 and bool(lines(messages)))
    assert len(lines(messages)) == 1 and "no NVIDIA driver" in lines(messages)[0]


def test_a_library_that_prints_does_not_break_the_frames(node: Node) -> None:
    node.tell("noisy")
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU0)) >= 3)
    assert node.feed.bad_frames == 0


def test_a_sampler_that_hangs_in_the_driver_can_be_closed(node: Node) -> None:
    node.tell("hang0 hang1")
    node.feed.start()
    node.run(lambda messages: Stale(GPU0) in messages)
    pid = node.feed.pid
    node.feed.close()
    assert not os.path.exists(f"/proc/{pid}")
