"""The sampler process: its input, its samples beside a driver that hangs or prints, and its end."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from chiplog_agent.stats.frames import PERIOD_MIN_S, FrameReader, encode_frame
from chiplog_agent.stats.gpu.threads import AbsentGpus
from chiplog_agent.stats.sampler import STALE_PERIODS, Sampler
from chiplog_agent.stats.sampler_process import (
    DeviceStale,
    Sample,
)
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import SAMPLE_INTERVAL_S
from tests.support.gpu_sampler import GPU0, GpuSampler, lines, of
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


def test_a_start_of_nvml_that_hangs_is_told_and_host_samples_go_on(node: GpuSampler) -> None:
    node.tell("hang_init")
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, "")) >= 12)
    assert [text for text in lines(messages) if "has not finished its start" in text] == lines(messages)[:1]
    devices = {message.device for message in messages if isinstance(message, Sample)}
    assert "" in devices and not any(device.startswith("GPU-") for device in devices)


def test_a_library_that_prints_does_not_break_the_frames(node: GpuSampler) -> None:
    node.tell("noisy")
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU0)) >= 3)
    assert node.feed.bad_frames == 0


@proves("driver-closed-at-end", "a sampler shuts the driver's library down at its end")
@proves("sampler-ends-by-itself", "a sampler may end by itself before it is killed")
def test_a_sampler_that_is_ended_shuts_nvml_down_without_samples_of_gpm(node: GpuSampler) -> None:
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU0)) >= 4)
    assert not node.shutdowns.exists()
    node.feed.close()
    assert node.shutdowns.read_bytes() == b"0"


def test_a_sampler_whose_driver_hangs_is_killed_at_its_end(node: GpuSampler) -> None:
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU0)) >= 4)
    node.tell("hang0 hang1")
    node.run(lambda messages: DeviceStale(GPU0) in messages)
    pid = node.feed.pid
    node.feed.close()
    assert not node.shutdowns.exists() and not os.path.exists(f"/proc/{pid}")


MODULE = [sys.executable, "-P", "-m", "chiplog_agent.stats"]


def test_the_sampler_ends_with_its_input_even_after_an_interrupt() -> None:
    sampler = subprocess.Popen(MODULE, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert sampler.stdout is not None
    reader = FrameReader()
    while not reader.feed(os.read(sampler.stdout.fileno(), 65_536)):
        pass
    sampler.send_signal(signal.SIGINT)
    while not reader.feed(os.read(sampler.stdout.fileno(), 65_536)):
        pass
    sampler.communicate(timeout=WAIT_S)
    assert sampler.returncode == 0


def test_the_sampler_says_what_it_does_not_understand() -> None:
    data = encode_frame(["dance", 1]) + encode_frame(["period", 0]) + encode_frame(["pids", ["x"]])
    done = subprocess.run(MODULE, input=data, capture_output=True, timeout=WAIT_S, check=False)
    texts = [value[1] for value in FrameReader().feed(done.stdout) if value[0] == "line"]
    assert sum("invalid frame" in text for text in texts) == 3
    assert done.returncode == 0


def test_the_sampler_refuses_a_frame_beyond_the_limit_and_says_so() -> None:
    done = subprocess.run(MODULE, input=b"\xff" * 8, capture_output=True, timeout=WAIT_S, check=False)
    assert "exceeds the limit" in FrameReader().feed(done.stdout)[-1][1]
    assert done.returncode == 1 and b"FrameError" in done.stderr


def test_the_sampler_imports_only_what_it_needs() -> None:
    code = (
        "import json, sys; before = set(sys.modules); import chiplog_agent.stats.sampler; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"  # what measures coverage is there before
    )
    modules = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    unwanted = {"numpy", "pynvml", "zmq", "duckdb", "asyncio", "dataclasses", "chiplog_schemas.model.block_format"}
    assert unwanted.isdisjoint(modules)


def test_the_sampler_takes_its_interval_and_its_ranks_from_the_input() -> None:
    sampler = subprocess.Popen(MODULE, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert sampler.stdin is not None and sampler.stdout is not None
    sampler.stdin.write(encode_frame(["period", PERIOD_MIN_S]) + encode_frame(["pids", [os.getpid()]]))
    sampler.stdin.flush()
    reader, own = FrameReader(), f"pid:{os.getpid()}"
    taken_us: dict[str, list[int]] = {"": [], own: []}
    while min(map(len, taken_us.values())) < 6:
        for frame in reader.feed(os.read(sampler.stdout.fileno(), 65_536)):
            if frame[0] == "sample" and frame[2] in taken_us:
                taken_us[frame[2]].append(frame[1])
    sampler.communicate(timeout=WAIT_S)
    assert sampler.returncode == 0
    assert min(after - before for before, after in pairwise(taken_us[""])) < SAMPLE_INTERVAL_S * 1e6 / 2


@proves("silence-counted-in-requests", "a device is silent after five requests", value="list(self._answered)")
def test_a_device_that_answered_by_the_long_interval_is_not_stale_by_the_short_one() -> None:
    input_fd, writer_fd = os.pipe()
    try:
        gpus = AbsentGpus()
        sampler = Sampler(input_fd, -1, gpus)
        sampler._answered, sampler._n_requests = {"GPU-0": 10}, 60
        os.write(writer_fd, encode_frame(["period", 3600.0]) + encode_frame(["period", 1.0]))
        assert sampler._take_input()
        sampler._n_requests += STALE_PERIODS
        assert sampler._stale_frames(0.0) == []
        sampler._n_requests += 1
        assert sampler._stale_frames(0.0) == [["stale", "GPU-0"]]
    finally:
        gpus.box.close()
        for descriptor in (input_fd, writer_fd):
            os.close(descriptor)


def test_a_slow_source_of_ranks_is_not_stale_between_its_readings() -> None:
    gpus = AbsentGpus()
    try:
        sampler = Sampler(-1, -1, gpus)
        for device in ("pid:7", "", "GPU-0"):
            gpus.box.post(["sample", 1, device, ("a",), (1.0,)])
        assert len(sampler._posted_frames()) == 3
        sampler._n_requests += STALE_PERIODS + 1
        stale = sampler._stale_frames(0.0)
        assert [device for kind, device in stale if kind == "stale"] == ["GPU-0"]
    finally:
        gpus.box.close()


def test_no_gpu_is_stale_because_the_agent_stood_still(node: GpuSampler) -> None:
    """The pipe is full then, and the sampler waits."""
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU0)) >= 4)
    first_seen: dict[tuple[str, ...], float] = {}  # by the state of its main thread and the number of its waits

    def is_in_one_wait() -> bool:
        text = Path(f"/proc/{node.feed.pid}/status").read_text(encoding="ascii")
        seen = tuple(line for line in text.splitlines() if line.startswith(("State:", "voluntary_ctxt_switches:")))
        since = first_seen.setdefault(seen, time.monotonic())
        return "sleeping" in seen[0] and time.monotonic() - since > 1.0

    wait_until(is_in_one_wait, "a wait longer than that for its timer, 0.1 s: for room in the pipe")
    read_us = now_us()
    messages = node.run(lambda messages: sum(each.ts_us > read_us for each in of(messages)) > 2 * STALE_PERIODS)
    times = [sample.ts_us for sample in of(messages)]
    assert max(after - before for before, after in pairwise(times)) > 10**6, "the sampler did not wait"
    assert not [message for message in messages if isinstance(message, DeviceStale)]


def test_the_sampler_ends_when_no_process_reads_its_samples() -> None:
    sampler = subprocess.Popen(MODULE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert sampler.stdin is not None and sampler.stdout is not None and sampler.stderr is not None
    sampler.stdout.close()
    assert sampler.wait(WAIT_S) == 1
    assert sampler.stderr.read() == b"", "an agent that has gone is no failure of the sampler"
    sampler.stdin.close()
    sampler.stderr.close()
