"""The agent's half and the real sampler process: what flows, what is replaced, and what never blocks."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.frames import encode_frame
from chiplog_agent.stats.sampler_process import (
    DeviceEvent,
    DeviceStale,
    Message,
    SamplerProcess,
)
from tests.support.gpu_sampler import GPU0, GpuSampler, collect, lines
from tests.support.gpu_sampler import of as samples
from tests.support.waiting import WAIT_S


@pytest.fixture
def feed() -> Iterator[SamplerProcess]:
    feed = SamplerProcess(period_s=0.05)
    yield feed
    feed.close()


def test_host_samples_flow_and_share_one_tuple_of_names(feed: SamplerProcess) -> None:
    feed.start()
    before_us = time.time_ns() // 1000
    host = samples(collect(feed, lambda messages: len(samples(messages)) >= 3))
    assert all(sample.names is host[0].names for sample in host)
    assert "system.memory.usage" in host[0].names and len(host[0].values) == len(host[0].names)
    assert before_us <= host[0].ts_us < host[1].ts_us < host[2].ts_us <= time.time_ns() // 1000
    assert feed.bad_frames == 0


def test_watched_ranks_are_sampled_until_they_are_not_watched(feed: SamplerProcess) -> None:
    feed.start()
    device = f"pid:{os.getpid()}"
    feed.watch([os.getpid()])
    collect(feed, lambda messages: len(samples(messages, device)) >= 2)
    feed.watch([])
    collect(feed, lambda messages: len(samples(messages[-20:])) == 20)  # the host alone, twenty times in a row


def test_a_new_interval_counts_at_once_and_a_sampler_that_was_slow_by_the_old_one_is_not_silent() -> None:
    with contextlib.closing(SamplerProcess(period_s=3600.0)) as feed:
        feed.start()
        collect(feed, lambda messages: len(samples(messages)) == 1)
        feed.tick(0.0)
        feed.tick(1.0)
        feed.set_period(0.05)
        feed.tick(3000.0)
        messages = collect(feed, lambda messages: len(samples(messages)) >= 3)
        assert not any("silent" in line for line in lines(messages))


def test_a_sampler_that_is_killed_is_replaced_and_watches_the_same_ranks(feed: SamplerProcess) -> None:
    feed.start()
    feed.watch([os.getpid()])
    collect(feed, lambda messages: bool(samples(messages)))
    number, pid = feed.fileno(), feed.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ended: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while not lines(ended) or "signal 9" not in lines(ended)[-1]:
        assert time.monotonic() < deadline
        feed.tick(100.0)
        ended += feed.read()
        time.sleep(0.01)
    assert feed.pid is None
    feed.tick(100.9)
    assert feed.pid is None  # the pause has not passed
    feed.tick(101.1)
    assert feed.pid not in (None, pid) and feed.restarts == 1 and feed.fileno() == number
    collect(feed, lambda messages: bool(samples(messages, f"pid:{os.getpid()}")))


@pytest.mark.promise(9)
def test_a_silent_sampler_is_killed_and_replaced(feed: SamplerProcess) -> None:
    feed.start()
    collect(feed, lambda messages: bool(samples(messages)))
    pid = feed.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    while feed.read():
        pass
    feed.tick(100.0)
    feed.read()
    feed.tick(100.1)
    feed.tick(109.0)
    assert feed.pid == pid
    feed.tick(111.0)
    assert feed.pid is None
    assert "was silent" in lines(feed.read())[-1]
    feed.tick(113.0)
    collect(feed, lambda messages: bool(samples(messages)))


def test_an_agent_that_paused_does_not_blame_the_sampler(feed: SamplerProcess) -> None:
    feed.start()
    collect(feed, lambda messages: bool(samples(messages)))
    feed.tick(100.0)
    pid = feed.pid
    select.select([feed.fileno()], [], [], WAIT_S)
    feed.tick(5000.0)
    assert feed.pid == pid


def test_the_pause_before_a_restart_doubles_up_to_a_minute() -> None:
    feed = SamplerProcess(command=("/nonexistent/python",))
    feed.start()
    assert "cannot be started" in lines(feed.read())[0]
    now, pauses = 0.0, []
    feed.tick(now)
    for _ in range(8):
        restarts, began = feed.restarts, now
        while feed.restarts == restarts:
            now += 0.5
            feed.tick(now)
        pauses.append(now - began)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    feed.close()


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.write(1, b'\\xff' * 100_000)",
        "import os; os.write(1, b'Traceback: this is no frame')",
        "import os, time; os.write(1, b'\\xff' * 8); time.sleep(600)",
    ],
)
def test_a_sampler_that_talks_nonsense_is_ended_and_told_about(code: str) -> None:
    feed = SamplerProcess(command=(sys.executable, "-c", code))
    feed.start()
    told: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while feed.pid is not None:
        assert time.monotonic() < deadline
        told += feed.read()
        feed.tick(1.0)
        time.sleep(0.01)
    assert any("cannot be read" in text for text in lines(told + feed.read()))
    feed.close()


def test_frames_of_unknown_kinds_and_wrong_types_are_counted_and_skipped() -> None:
    frames = [["new", 1], ["sample", 1, "", ["a"], []], ["sample", 1, "", ["a"], ["b"]], 7, ["line", "good"]]
    data = b"".join(map(encode_frame, frames))
    feed = SamplerProcess(command=(sys.executable, "-c", f"import os, sys; os.write(1, {data!r}); sys.stdin.read()"))
    feed.start()
    assert lines(collect(feed, lambda messages: bool(messages))) == ["good"]
    assert feed.bad_frames == 4
    feed.close()


def test_an_event_has_a_body_and_that_of_an_older_sampler_has_none() -> None:
    frames = [
        ["event", "gpu.xid", "error", "XID 79", "GPU-1", {"code": 79}],
        ["event", "gpu.back", "info", "b", "GPU-1"],
    ]
    frames.append(["event", "gpu.xid", "error", "XID 79", "GPU-1", [79]])
    data = b"".join(map(encode_frame, frames))
    feed = SamplerProcess(command=(sys.executable, "-c", f"import os, sys; os.write(1, {data!r}); sys.stdin.read()"))
    feed.start()
    messages = collect(feed, lambda messages: len(messages) == 2)
    assert messages == [
        DeviceEvent("gpu.xid", "error", "XID 79", "GPU-1", {"code": 79}),
        DeviceEvent("gpu.back", "info", "b", "GPU-1", {}),
    ]
    assert feed.bad_frames == 1
    feed.close()


def test_a_full_pipe_does_not_block_and_the_last_set_arrives(feed: SamplerProcess) -> None:
    feed.start()
    collect(feed, lambda messages: bool(samples(messages)))
    assert feed.pid is not None
    os.kill(feed.pid, signal.SIGSTOP)
    for count in range(200):  # 200 sets of 4 KB: twelve times what the pipe holds
        feed.watch(range(2**22 + count, 2**22 + count + 800))
    feed.watch([os.getpid()])
    os.kill(feed.pid, signal.SIGCONT)

    def until(messages: list[Message]) -> bool:
        feed.tick(time.monotonic())
        return bool(samples(messages, f"pid:{os.getpid()}"))

    collect(feed, until)


def test_closing_leaves_no_process_and_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    feed = SamplerProcess()
    feed.start()
    collect(feed, lambda messages: bool(messages))
    pid = feed.pid
    feed.close()
    feed.close()
    feed.tick(1e9)
    assert feed.read() == [] and feed.pid is None
    assert not os.path.exists(f"/proc/{pid}")
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_sampler_inherits_no_descriptor_and_no_output(feed: SamplerProcess, tmp_path: Path) -> None:
    with open(tmp_path / "open", "w") as file:
        os.set_inheritable(file.fileno(), True)
        feed.start()
        collect(feed, lambda messages: bool(samples(messages)))
        folder = f"/proc/{feed.pid}/fd"
        targets = []
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # a file that it read just now
                targets.append(os.readlink(f"{folder}/{name}"))
        assert not any("open" in os.path.basename(target) for target in targets), targets
        assert os.readlink(f"{folder}/2") == "/dev/null"


def test_the_sampler_dies_with_its_agent() -> None:
    code = (
        "import time; from chiplog_agent.stats.sampler_process import SamplerProcess\n"
        "feed = SamplerProcess(); feed.start(); print(feed.pid, flush=True); time.sleep(600)"
    )
    agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    assert os.path.exists(f"/proc/{pid}")
    agent.kill()
    agent.communicate()
    deadline = time.monotonic() + WAIT_S
    while os.path.exists(f"/proc/{pid}") and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_sampler_that_hangs_in_the_driver_can_be_closed(node: GpuSampler) -> None:
    node.tell("hang0 hang1")
    node.feed.start()
    node.run(lambda messages: DeviceStale(GPU0) in messages)
    pid = node.feed.pid
    node.feed.close()
    assert not os.path.exists(f"/proc/{pid}")
