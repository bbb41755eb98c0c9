"""Random schedules of what can befall GPUs: drivers reload, devices leave and return, calls fail and hang.

With a clock by hand by tests/support/gpu_schedules.py; some also as real processes, against the machine's clock.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from chiplog_agent.stats.sampler_process import DeviceEvent, Message
from tests.support.gpu_sampler import GPU0, GPU1, GpuSampler, compile_library, lines, of
from tests.support.marks import everyday
from tests.support.patched import LOOKS_OFTEN, patch_daemons
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.tools import needs

ROOT = Path(__file__).parents[2]
PART = 50  # schedules of one program
N_PROCESSES = 20
HOST_GAP_S = 1.0  # between samples of the host; they are 0.1 s apart, on a machine that other tests use too
WORDS = ["", "", "lost1", "lost0 lost1", "unloaded", "uninit", "gpus=3", "gpus=1", "mig1", "f0.186=fails gpm1=fails"]

pytestmark = needs("gcc")  # for the replacement library for NVML


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the replacement library and of its control file."""
    compile_library(tmp_path)
    (tmp_path / "control").write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML_CONTROL", str(tmp_path / "control"))
    return tmp_path


@proves("bus-shows-returned-gpu", "a GPU is back in time that only the PCI bus shows", value="addresses")
@pytest.mark.parametrize("n_parts", everyday(1, [1, 20]))
@pytest.mark.soak
def test_gpus_are_back_in_time_and_no_event_is_lost_or_doubled_whatever_befalls_them(
    folder: Path, rounds: Rounds, n_parts: int
) -> None:
    """Devices that are well answer each second, NVML's objects are freed, and no descriptor or memory grows."""
    for seed in rounds(n_parts):
        command = [sys.executable, "-m", "tests.support.gpu_schedules", str(seed * PART), str(PART)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-2000:]
        counts = json.loads(done.stdout)
        assert counts["schedules"] == PART and counts["xids reported"] > 0
        rounds.count("schedules", PART)
        rounds.count("XIDs", counts["xids reported"])


@pytest.fixture
def node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuSampler]:
    patch_daemons(monkeypatch, folder / "patch", LOOKS_OFTEN)
    node = GpuSampler(folder)
    yield node
    node.feed.close()


def pairs(messages: list[Message], device: str) -> list[str]:
    """Return the kinds of a device's events, `gpu.lost` and `gpu.back`, in their order."""
    events = [message for message in messages if isinstance(message, DeviceEvent) and message.device == device]
    return [event.kind for event in events if event.kind in ("gpu.lost", "gpu.back")]


def n_descriptors_of(node: GpuSampler) -> int:
    """Return the number of the sampler's descriptors, without those that a thread has open for a moment."""
    return min(len(os.listdir(f"/proc/{node.feed.pid}/fd")) for _ in range(100))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(N_PROCESSES))
def test_a_real_sampler_follows_a_random_schedule_without_a_missed_sample_of_the_host(
    node: GpuSampler, seed: int
) -> None:
    generator = random.Random(seed)
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU0)) >= 5 and len(of(messages, GPU1)) >= 5)
    n_descriptors = n_descriptors_of(node)
    messages: list[Message] = []
    for _ in range(6):
        node.tell(f"{generator.choice(WORDS)} {generator.choice(['', '', 'hang0', 'hang1', 'hang_events'])}")
        until = time.monotonic() + generator.uniform(0.2, 1.0)
        messages += node.run(lambda _: time.monotonic() >= until)  # noqa: B023  in this step
    node.tell("")
    messages += node.run(lambda found: all(len(of(found, gpu)) >= 3 for gpu in (GPU0, GPU1)))
    time.sleep(0.5)  # the thread of events registers after the first samples
    node.tell("xids=0:79,1:63,0:13")
    messages += node.run(lambda found: sum(isinstance(message, DeviceEvent) for message in found) >= 3)
    messages += node.run(lambda found: len(of(found, GPU0)) >= 5)
    xids = [message for message in messages if isinstance(message, DeviceEvent) and message.kind == "gpu.xid"]
    assert [(xid.device, xid.body["code"]) for xid in xids] == [(GPU0, 79), (GPU1, 63), (GPU0, 13)]
    for gpu in (GPU0, GPU1):
        kinds = pairs(messages, gpu)
        assert kinds == ["gpu.lost", "gpu.back"] * (len(kinds) // 2), (gpu, kinds, lines(messages))
    times_us = [sample.ts_us for sample in of(messages, "")]
    assert max(after - before for before, after in pairwise(times_us)) < HOST_GAP_S * 1e6
    assert n_descriptors_of(node) == n_descriptors
