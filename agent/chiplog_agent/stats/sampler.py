"""The sampler process: what cannot hang on its main thread, each GPU and other source on its own, frames on a pipe.

NVML calls hang in the kernel when a driver is wedged. Then one thread hangs: the device is marked stale, the host and
the other devices continue, and the agent can kill this process, which holds no data that is needed.
"""

import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from chiplog_agent.stats.frames import KNOWN_GPUS, PERIOD_MIN_S, RELEASED, FrameReader, encode_failure, encode_frame
from chiplog_agent.stats.gpu.known_gpus import KnownGpus
from chiplog_agent.stats.gpu.threads import AbsentGpus, GpuThreads, ReleasedGpus
from chiplog_agent.stats.host.facts import HostFactsSource
from chiplog_agent.stats.host.sources import host_sources
from chiplog_agent.stats.rank.gpu_use import RankGpuUse
from chiplog_agent.stats.rank.group_use import RankGroupUse
from chiplog_agent.stats.rank.process_tree import ProcessStats
from chiplog_agent.stats.rank.pss import RankPss
from chiplog_agent.stats.rank.tree_counters import RankCounters
from chiplog_agent.stats.source_set import SourceSet
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import SAMPLE_INTERVAL_MAX_S, SAMPLE_INTERVAL_S

STALE_PERIODS = 5  # requests without a sample; one slow call is not a failure
_FIRST_SAMPLE_S = 0.25  # a share of CPU needs a minimum time; a short run needs an early sample
_GATHER_S = 0.02  # posts of the devices of a request arrive within it, and are written together
_READ_BYTES = 65_536  # the size of a pipe


class Sampler:
    """The loop of the process: input, posts, timer. It ends with its input, or when NVML needs a new process."""

    def __init__(self, input_fd: int, output_fd: int, gpus: GpuThreads | AbsentGpus | None = None) -> None:
        self._input_fd = input_fd
        self._output_fd = output_fd
        self._reader = FrameReader()
        self._period_s = SAMPLE_INTERVAL_S
        self._gpus = GpuThreads() if gpus is None else gpus
        self._box = self._gpus.box
        self._processes = ProcessStats()
        self._gpu_use = RankGpuUse(self._processes)
        trees = self._processes
        ranks = [trees, self._gpu_use, RankCounters(trees), RankGroupUse(trees), RankPss(trees)]
        self._sources = SourceSet([*host_sources(), *ranks, HostFactsSource(self._box.post)], self._box)
        self._n_requests = 0  # of samples, so far
        self._answered: dict[str, int] = {}  # device → that number at its last sample
        self._stale: set[str] = set()
        self._holders: dict[str, dict[int, int]] = {}  # GPU → PIDs and their memory in bytes
        self._facts: dict[str, Any] = {}
        self._sent_facts: dict[str, Any] = {}
        self._is_over = False
        self._init_at = 0.0
        self._init_late = False

    def run(self) -> None:
        """Sample until the end. Raises OSError when the output breaks, FrameError when the input is not a frame."""
        poller = select.poll()
        poller.register(self._input_fd, select.POLLIN)
        poller.register(self._box.fileno(), select.POLLIN)
        self._init_at = time.monotonic()
        self._gpus.start()
        next_at = self._init_at + min(_FIRST_SAMPLE_S, self._period_s)
        while True:
            wait_ms = max(next_at - time.monotonic(), 0.0) * 1000
            ready = dict(poller.poll(wait_ms))
            if self._input_fd in ready and not self._take_input():
                return
            if self._box.fileno() in ready:
                time.sleep(min(_GATHER_S, max(next_at - time.monotonic(), 0.0)))
                self._box.drain()
                self._write(self._posted_frames())
                if self._is_over:
                    return
            now = time.monotonic()
            next_at = min(next_at, now + self._period_s)  # the interval may just have become shorter
            if now >= next_at:
                self._write(self._tick(now))
                # After a stall the missed samples stay missing: a burst of late ones would contain nothing new.
                next_at = max(next_at + self._period_s, time.monotonic())

    def _take_input(self) -> bool:
        data = os.read(self._input_fd, _READ_BYTES)
        for value in self._reader.feed(data):
            match value:
                case ["pids", [*pids]] if all(isinstance(pid, int) and pid > 0 for pid in pids):
                    self._processes.watch(pids)
                case ["period", int() | float() as seconds] if PERIOD_MIN_S <= seconds <= SAMPLE_INTERVAL_MAX_S:
                    self._period_s = float(seconds)
                    self._answered = dict.fromkeys(self._answered, self._n_requests)  # none is late by the new interval
                case _:
                    self._write([["line", f"the sampler received an invalid frame: {value!r:.200}"]])
        return bool(data)

    def _tick(self, now: float) -> list[list[Any]]:
        self._n_requests += 1
        # The host is read first; what ranks and a busy machine add to the time of the reading is no jitter of it.
        ts_us, readings = now_us(), self._sources.read(now)
        self._gpus.request()  # safeguard: sampler-never-waits-for-gpu
        frames: list[list[Any]] = [["sample", ts_us, *reading] for reading in readings]
        frames += [["holders", pid, uuids] for pid, uuids in self._processes.take_devices(self._holders)]
        frames += [["line", line] for line in self._processes.lines]
        self._processes.lines.clear()
        frames += [["stale", title] for title in self._sources.late(now)]
        return frames + self._stale_frames(now) + self._facts_frames()

    def _posted_frames(self) -> list[list[Any]]:
        frames = []
        now = time.monotonic()
        while self._box.messages:
            post = self._box.messages.popleft()
            match post:
                case ["known", uuid]:
                    self._answered[uuid] = self._n_requests
                    continue
                case ["use", uuid, use]:
                    self._holders[uuid] = use.memory
                    self._gpu_use.put(uuid, use, now)
                    continue
                case ["facts", facts]:
                    self._facts |= facts
                    continue
                case ["gone", uuid]:
                    for known in (self._answered, self._holders):
                        known.pop(uuid, None)
                    self._stale.discard(uuid)
                    self._gpu_use.drop(uuid)
                    continue
                case ["restart", reason]:
                    self._is_over = True
                    post = ["line", reason]
                case ["sample", _, uuid, _, _] if uuid and ":" not in uuid:  # a source has a deadline of its own
                    self._answered[uuid] = self._n_requests
                    self._stale.discard(uuid)
                case ["event", "gpu.lost", _, _, uuid, _]:
                    self._answered.pop(uuid, None)  # it is reported as lost, which includes stale
            frames.append(post)
        return frames

    def _stale_frames(self, now: float) -> list[list[Any]]:
        patience_s = STALE_PERIODS * self._period_s
        # Counted, not timed: while the agent reads nothing, this loop waits, and asks no device.
        # safeguard: silence-counted-in-requests
        silent = [device for device, at in self._answered.items() if self._n_requests - at > STALE_PERIODS]
        late = [device for device in silent if device not in self._stale]
        self._stale.update(late)  # safeguard: stale-device-reported
        frames: list[list[Any]] = [["stale", device] for device in late]
        if not self._gpus.initialised and not self._init_late and now - self._init_at > patience_s:
            self._init_late = True
            text = f"hw.* is absent: NVML has not finished its start within {patience_s:g} s"
            frames.append(["line", text, "warning"])
        return frames

    def _facts_frames(self) -> list[list[Any]]:
        """Return the facts of host and GPUs together if they are new. A driver that hangs does not delay the host's."""
        is_whole = "kernel" in self._facts and (self._gpus.initialised or self._init_late)
        if not is_whole or self._facts == self._sent_facts:
            return []
        self._sent_facts = dict(self._facts)
        return [["facts", self._sent_facts]]

    def _write(self, frames: list[list[Any]]) -> None:
        """Write whole frames. Blocks while the agent does not read: then no samples are taken, and none are queued."""
        data = memoryview(b"".join(map(encode_frame, frames)))
        while data:
            data = data[os.write(self._output_fd, data) :]


def main() -> None:
    """Run the sampler process; does not return. Input on descriptor 0, output on descriptor 1."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C ends the agent, which shuts the sampler down
    output_fd = os.dup(1)
    os.dup2(2, 1)  # a driver's library that prints must not write into the frames
    code = 0
    paths = [word.removeprefix(KNOWN_GPUS) for word in sys.argv[1:] if word.startswith(KNOWN_GPUS)]
    known = KnownGpus(Path(paths[0]) if paths else None)
    gpus = ReleasedGpus() if RELEASED in sys.argv[1:] else GpuThreads(known)  # safeguard: released-gpus-stay-closed
    try:
        Sampler(0, output_fd, gpus).run()
    except BrokenPipeError:
        code = 1  # the agent is gone: there is no reader
    except Exception as error:  # the agent gets the error and starts a new sampler; a user who runs this sees it
        code = 1
        traceback.print_exc()
        try:
            os.write(output_fd, encode_failure(error))
        except OSError:
            pass  # there is no reader any more
    gpus.close()  # safeguard: driver-closed-at-end
    os._exit(code)  # does not wait for threads that hang in a driver
