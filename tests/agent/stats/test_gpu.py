"""GPUs through the real pynvml and a small libnvidia-ml.so.1 that can fail and hang on demand."""

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.frames import MigDevice
from chiplog_agent.stats.gpu import FIELDS, kernel_gpus
from chiplog_agent.stats.gpu_threads import CHECK_INTERVAL_S, RETRY_MAX_S
from chiplog_agent.stats.sampler_process import (
    DeviceEvent,
    DeviceStale,
    Gpus,
    Holders,
    Message,
    Sample,
    SamplerLog,
    SamplerProcess,
)
from tests.support.safeguard import Safeguard

WAIT_S = 40.0  # generous, and still shorter than the library hangs
GPU0 = "GPU-00000000-0000-0000-0000-000000000000"
GPU1 = "GPU-00000000-0000-0000-0000-000000000001"
GPU2 = "GPU-00000000-0000-0000-0000-000000000002"
MIG = [f"MIG-00000001-0000-0000-0000-00000000000{number}" for number in range(2)]
SOURCE = Path(__file__).parents[2] / "support" / "fake_nvml" / "nvml.c"
LOST = "test_lost_gpus_are_errors_said_once_and_are_back_after_their_return"

SAFEGUARDS = [
    Safeguard(
        "NVML is initialised again while GPUs are lost",
        "nvml-retried-while-lost",
        new="if self._stats is None:",
        test="test_lost_gpus_are_errors_said_once_and_are_back_after_their_return",
    ),
    Safeguard(
        "handles are dead until NVML was shut down",
        "nvml-closed-before-retry",
        test="test_lost_gpus_are_errors_said_once_and_are_back_after_their_return",
    ),
    Safeguard(
        "a changed number of GPUs is noticed",
        "gpu-count-change-noticed",
        value="False",
        test="test_a_gpu_that_comes_later_is_seen_and_one_that_goes_is_lost",
    ),
    Safeguard(
        "NVML is not shut down under a call that hangs",
        "nvml-open-under-hung-call",
        value="True",
        test="test_a_gpu_that_hangs_keeps_no_other_from_being_sampled_while_one_is_lost",
    ),
    Safeguard(
        "a lost GPU is an error",
        "lost-gpu-is-error",
        part='"error"',
        new='"info"',
        test="test_lost_gpus_are_errors_said_once_and_are_back_after_their_return",
    ),
    Safeguard(
        "a bare context on another GPU makes it not a rank's",
        "bare-context-is-incidental",
        part="_INCIDENTAL_SHARE",
        new="0",
        test="test_the_gpus_that_a_ranks_processes_use_are_told_when_they_change",
    ),
]

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the replacement library for NVML needs gcc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    output = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(output), str(SOURCE)], check=True)
    return folder


class Node:
    """A sampler with the library; `tell` orders failures."""

    def __init__(self, folder: Path) -> None:
        self.control = folder / "control"
        self.calls = folder / "calls"
        self.control.write_text("")
        self.messages: list[Message] = []
        self.feed = SamplerProcess(period_s=0.1)

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
    return [message.text for message in messages if isinstance(message, SamplerLog)]


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


def tables(messages: list[Message]) -> list[Gpus]:
    return [message for message in messages if isinstance(message, Gpus)]


def events(messages: list[Message], kind: str, device: str) -> list[DeviceEvent]:
    found = [message for message in messages if isinstance(message, DeviceEvent)]
    return [message for message in found if (message.kind, message.device) == (kind, device)]


@pytest.mark.parametrize(
    ("word", "devices", "reason"),
    [
        ("lost0", [GPU0], "GPU is lost"),
        ("lost0 lost1", [GPU0, GPU1], "GPU is lost"),
        ("unloaded", [GPU0, GPU1], "Driver Not Loaded"),
        ("uninit", [GPU0, GPU1], "Uninitialized"),
    ],
)
def test_lost_gpus_are_errors_said_once_and_are_back_after_their_return(
    node: Node, word: str, devices: list[str], reason: str
) -> None:
    """Handles stay dead until NVML was initialised again, as those of a driver that was loaded again do."""
    node.feed.start()
    names = {of(node.run(lambda messages: len(of(messages, GPU0)) >= 2), GPU0)[0].names}
    node.tell(word)
    messages = node.run(lambda messages: all(events(messages, "gpu.lost", device) for device in devices))
    messages += node.run(lambda messages: len(of(messages, "")) >= 30)
    for device in devices:
        [lost] = events(messages, "gpu.lost", device)
        assert lost.level == "error" and reason in lost.text and device in lost.text
        assert DeviceStale(device) not in messages
    others = {GPU0, GPU1} - set(devices)
    assert all(not events(messages, "gpu.lost", other) and len(of(messages, other)) >= 10 for other in others)
    node.tell("")
    messages = node.run(lambda messages: all(events(messages, "gpu.back", device) for device in devices))
    messages += node.run(lambda messages: all(len(of(messages, device)) >= 2 for device in (GPU0, GPU1)))
    assert names <= {sample.names for sample in of(messages, GPU0)}
    assert not any(events(messages, "gpu.lost", device) for device in devices)


def test_a_device_is_back_within_5_s_of_its_return() -> None:
    assert CHECK_INTERVAL_S + RETRY_MAX_S < 5.0


def test_a_gpu_that_comes_later_is_seen_and_one_that_goes_is_lost(node: Node) -> None:
    node.feed.start()
    node.run(lambda messages: bool(of(messages, GPU1)))
    node.tell("gpus=3")
    messages = node.run(lambda found: len(of(found, GPU2)) >= 2 and [len(t.gpus) for t in tables(found)][-1:] == [3])
    assert [gpu.uuid for gpu in tables(messages)[-1].gpus] == [GPU0, GPU1, GPU2]
    assert not [message for message in messages if isinstance(message, DeviceEvent)]
    node.tell("gpus=1")
    messages = node.run(
        lambda messages: bool(events(messages, "gpu.lost", GPU1) and events(messages, "gpu.lost", GPU2))
    )
    node.tell("gpus=3")
    messages = node.run(lambda found: all(events(found, "gpu.back", device) for device in (GPU1, GPU2)))
    assert not events(messages, "gpu.back", GPU0)


def test_a_gpu_that_hangs_keeps_no_other_from_being_sampled_while_one_is_lost(node: Node) -> None:
    """NVML cannot be initialised again while a call hangs; the devices that work continue."""
    node.tell("gpus=3")
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU2)) >= 2)
    node.tell("gpus=3 hang1 lost2")
    node.run(lambda messages: bool(events(messages, "gpu.lost", GPU2)) and DeviceStale(GPU1) in messages)
    node.run(lambda messages: len(of(messages, GPU0)) >= 20)
    node.tell("gpus=3")
    messages = node.run(lambda messages: bool(events(messages, "gpu.back", GPU2)) and len(of(messages, GPU1)) >= 2)
    assert of(messages, GPU0)


def test_a_driver_that_is_loaded_after_the_agents_start_is_found(node: Node) -> None:
    node.tell("no_driver")
    node.feed.start()
    node.run(lambda messages: bool(lines(messages)))
    node.tell("")
    messages = node.run(lambda messages: len(of(messages, GPU0)) >= 2)
    assert not [message for message in messages if isinstance(message, DeviceEvent)], "it was not there before"


def test_the_kernels_list_of_gpus_tells_of_one_that_nvml_does_not_count(tmp_path: Path) -> None:
    assert kernel_gpus(str(tmp_path / "absent")) == []
    for name in ("0000:1b:00.0", "0000:04:00.0"):
        (tmp_path / name).mkdir()
    assert kernel_gpus(str(tmp_path)) == ["0000:04:00.0", "0000:1b:00.0"]


def test_mig_instances_are_devices_of_their_own(node: Node) -> None:
    node.tell("mig1")
    node.feed.start()
    devices = (*MIG, GPU0, GPU1)
    messages = node.run(lambda found: all(len(of(found, uuid)) >= 2 for uuid in devices) and bool(tables(found)))
    assert {sample.names for sample in of(messages, MIG[0])} == {("hw.gpu.memory.usage", "hw.gpu.memory.limit")}
    [table] = tables(messages)
    assert table.gpus[0].instances == ()
    assert table.gpus[1].instances == (MigDevice(MIG[0], 3, 0), MigDevice(MIG[1], 4, 0))


def test_the_gpus_that_a_ranks_processes_use_are_told_when_they_change(node: Node) -> None:
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


def test_a_hanging_gpu_goes_stale_and_stalls_neither_the_host_nor_the_other(node: Node) -> None:
    node.feed.start()
    node.run(lambda messages: bool(of(messages, GPU0)) and bool(of(messages, GPU1)))
    node.tell("hang1")
    messages = node.run(lambda messages: DeviceStale(GPU1) in messages)
    messages += node.run(lambda messages: len(of(messages, "")) >= 10 and len(of(messages, GPU0)) >= 10)
    assert messages.count(DeviceStale(GPU1)) == 1 and DeviceStale(GPU0) not in messages


def test_a_start_of_nvml_that_hangs_is_told_and_host_samples_go_on(node: Node) -> None:
    node.tell("hang_init")
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, "")) >= 12)
    assert [text for text in lines(messages) if "has not finished its start" in text] == lines(messages)[:1]
    assert {message.device for message in messages if isinstance(message, Sample)} == {""}


def reasons(messages: list[Message]) -> list[str]:
    """Return the lines, without the one of a machine on which NVML starts slowly."""
    return [text for text in lines(messages) if "has not finished its start" not in text]


@pytest.mark.parametrize("words", ["no_driver", "no_permission"])
def test_a_node_without_usable_nvml_says_why_in_one_line(node: Node, words: str) -> None:
    node.tell(words)
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, "")) >= 5 and bool(reasons(messages)))
    assert len(reasons(messages)) == 1
    assert reasons(messages)[0].startswith("hw.* is absent: NVML cannot be initialised")


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
    messages = node.run(lambda messages: len(of(messages, "")) >= 5 and bool(reasons(messages)))
    assert len(reasons(messages)) == 1 and "no NVIDIA driver" in reasons(messages)[0]


def test_a_library_that_prints_does_not_break_the_frames(node: Node) -> None:
    node.tell("noisy")
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU0)) >= 3)
    assert node.feed.bad_frames == 0


def test_a_sampler_that_hangs_in_the_driver_can_be_closed(node: Node) -> None:
    node.tell("hang0 hang1")
    node.feed.start()
    node.run(lambda messages: DeviceStale(GPU0) in messages)
    pid = node.feed.pid
    node.feed.close()
    assert not os.path.exists(f"/proc/{pid}")
