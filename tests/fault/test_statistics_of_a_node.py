"""Statistics of a whole node for minutes: no second is missed, one field call serves a GPU, and nothing grows.

Eight GPUs of the library in place of NVML with every reading, eight ranks with eight workers each, one sample a second.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.sampler_process import Message, Sample, SamplerProcess
from chiplog_schemas.model.system_metrics import GPU_METRICS
from tests.support.gpu_sampler import GPU0, collect, compile_library, lines
from tests.support.rounds import Rounds
from tests.support.tools import needs

pytestmark = [pytest.mark.full, needs("gcc")]

GPUS = RANKS = WORKERS = 8
STALL_S = 0.5  # a machine that wakes a thread so late may also keep the sampler from its second
GROWTH_MAX_KIB = 512  # of the resident memory after the first minute: the allocator's own
RANK = f"import subprocess; [subprocess.Popen(['sleep', '100000']) for _ in range({WORKERS})]; print(); input()"


@pytest.fixture
def ranks() -> Iterator[list[int]]:
    """The PIDs of ranks whose workers run."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = [
        subprocess.Popen([sys.executable, "-c", RANK], start_new_session=True, **pipes)  # type: ignore[call-overload]
        for _ in range(RANKS)
    ]
    for rank in started:
        rank.stdout.readline()
    yield [rank.pid for rank in started]
    for rank in started:
        os.killpg(rank.pid, 9)
        rank.wait()
        rank.stdin.close()
        rank.stdout.close()


@pytest.mark.soak
def test_statistics_of_a_node_miss_no_second_and_grow_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: list[int], rounds: Rounds
) -> None:
    """Each round is a minute."""
    compile_library(tmp_path)
    used = [f"pid{number}={pid}:5000 busy{number}={pid}:40" for number, pid in enumerate(ranks)]
    (tmp_path / "control").write_text(" ".join([f"gpus={GPUS}", *used]))
    calls = tmp_path / "calls"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML_CONTROL", str(tmp_path / "control"))
    monkeypatch.setenv("FAKE_NVML_CALLS", str(calls))
    feed = SamplerProcess(period_s=1.0)
    feed.watch(ranks)
    devices = ["", *(f"{GPU0[:-1]}{number}" for number in range(GPUS)), *(f"pid:{pid}" for pid in ranks)]
    try:
        feed.start()
        collect(feed, lambda found: {message.device for message in found if isinstance(message, Sample)} >= {*devices})
        read_for(feed, 20.0)  # until each kind of reading was taken
        held = resources(feed)
        for _ in rounds(3):
            begun, calls_before = time.monotonic(), calls.stat().st_size
            messages, n_stalls = read_for(feed, 60.0)
            elapsed_s, n_calls = time.monotonic() - begun, calls.stat().st_size - calls_before
            samples = [message for message in messages if isinstance(message, Sample)]
            for device in devices:
                taken_us = {sample.ts_us for sample in samples if sample.device == device}
                rounds.count("samples", len(taken_us))
                assert len(taken_us) >= int(elapsed_s) - 1 - n_stalls, device or "host"
            assert lines(messages) == []
            read = {name for sample in samples if sample.device == GPU0 for name in sample.names}
            assert GPU_METRICS.keys() - read == {"hw.gpu.retired_pages.single_bit", "hw.gpu.retired_pages.double_bit"}
            assert n_calls / GPUS <= elapsed_s + 2.0, "one field call per GPU and second"
        after = resources(feed)
    finally:
        feed.close()
    assert after[0] == held[0], "descriptors"
    assert after[1] - held[1] <= GROWTH_MAX_KIB, "KiB of memory"


def read_for(feed: SamplerProcess, seconds: float) -> tuple[list[Message], int]:
    """Return what the sampler sends in this time, and how often the machine stalled."""
    messages: list[Message] = []
    last = time.monotonic()
    deadline, n_stalls = last + seconds, 0
    while last < deadline:
        time.sleep(0.2)
        now = time.monotonic()
        n_stalls += now - last > STALL_S
        last = now
        messages += feed.read()
        feed.tick(now)
    return messages, n_stalls


def resources(feed: SamplerProcess) -> tuple[int, int]:
    """Return the sampler's descriptors, without those that a thread has open for a moment, and its memory in KiB."""
    pages = int(Path(f"/proc/{feed.pid}/statm").read_text().split()[1])
    descriptors = min(len(os.listdir(f"/proc/{feed.pid}/fd")) for _ in range(100))
    return descriptors, pages * os.sysconf("SC_PAGE_SIZE") // 1024
