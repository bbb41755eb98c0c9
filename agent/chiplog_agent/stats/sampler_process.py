"""The agent's half of sampling: starts the sampler process, reads its frames, and replaces it when it is silent.

Nothing here waits for the sampler, and nothing here raises into the agent's loop.
"""

import os
import select
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chiplog_agent.stats.frames import KNOWN_GPUS, RELEASED, FrameError, FrameReader, Gpu, MigDevice, encode_frame
from chiplog_agent.stats.gpu.nvml import has_driver
from chiplog_schemas.backoff import Backoff
from chiplog_schemas.limits import KIB, SAMPLE_INTERVAL_S

if TYPE_CHECKING:
    from chiplog_agent.stats.sampler_thread import SamplerThread

SILENT_PERIODS = 10  # the host is sampled every interval: a sampler that is silent for ten is wedged …
SILENT_MIN_S = 10.0  # … but a Python start on a loaded node takes seconds, however short the interval
RESTART_MIN_S = 1.0  # the pause before the first restart
RESTART_MAX_S = 60.0  # the longest pause; it doubles in between
_SETTLED_S = 60.0  # a sampler that ran this long resets the pause
_READ_BYTES = 64 * KIB  # the size of a pipe
_READS_MAX = 16  # per call: 1 MiB, a frame of the largest size; a sampler that floods must not block the loop
# The thread of events ends within its time-out of 1 s; a driver that hangs must not delay the agent's end.
_END_WAIT_S = 1.5
_CLOSE_WAIT_S = 0.5  # a killed process ends in milliseconds, unless a driver holds it: then init reaps it
_PIDS_MAX = 4096  # ranks of one node; 12 KB, which fit into a pipe
_DEVICE_CHARS_MAX = 256  # a GPU's UUID has 40
_DEVICES_MAX = 4096  # column groups remembered; each rank that ever ran on the node is a device
_COMMAND = (sys.executable, "-P", "-m", "chiplog_agent.stats")


@dataclass(slots=True, frozen=True)
class Sample:
    """One device's numbers at one time: `ts_us` is µs since the epoch, UTC; names and values correspond by position.

    `device` is a GPU's UUID, `pid:<PID>` for a rank, or empty for the host. `names` is the same object in all samples
    of a device as long as its content is the same.
    """

    ts_us: int
    device: str
    names: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(slots=True, frozen=True)
class SamplerLog:
    """One line for the agent's log: why something is absent, or what happened to the sampler."""

    text: str
    level: str = "info"


@dataclass(slots=True, frozen=True)
class DeviceStale:
    """A device without a sample for five requests. Reported once; its next sample ends this state."""

    device: str


@dataclass(slots=True, frozen=True)
class DeviceEvent:
    """An event of a device, or of the node's driver: the kind, level, text and body of its row in `events`.

    The row's body has the device too.
    """

    kind: str
    level: str
    text: str
    device: str
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Gpus:
    """The GPUs of the node in NVML's order, from now on."""

    gpus: tuple[Gpu, ...]


@dataclass(slots=True, frozen=True)
class Holders:
    """The GPUs that the processes of a rank use now, from NVML."""

    pid: int
    uuids: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class NodeFacts:
    """What the node is: the body of a row in `events`."""

    facts: dict[str, Any]


@dataclass(slots=True, frozen=True)
class GpuAddresses:
    """The PCI addresses of GPUs by UUID, also of lost ones."""

    addresses: dict[str, str]


Message = NodeFacts | GpuAddresses | Sample | SamplerLog | DeviceStale | DeviceEvent | Gpus | Holders


class SamplerProcess:
    """The sampler process as seen by the agent's loop. `period_s` is the time between samples.

    may_share: the sampler may be a thread of this process, see `SamplerThread`. While one hangs, its successor is a
    process, so threads do not accumulate. known_gpus: the file in which samplers keep the UUIDs of GPUs.

    `fileno()` keeps its number through every restart: register it once, with poll(2), select or zmq.Poller (not with
    epoll, which watches the pipe behind the number, and that changes). `bad_frames` counts unknown frames, `restarts`
    the restarts of the sampler.
    """

    def __init__(
        self,
        *,
        period_s: float = SAMPLE_INTERVAL_S,
        command: tuple[str, ...] = _COMMAND,
        may_share: bool = False,
        known_gpus: Path | None = None,
    ) -> None:
        self.bad_frames = 0
        self.restarts = 0
        self._period_s = period_s
        self._command = command if known_gpus is None else (*command, f"{KNOWN_GPUS}{known_gpus}")
        self._may_share = may_share
        self._process: subprocess.Popen[bytes] | SamplerThread | None = None
        self._killed: list[subprocess.Popen[bytes] | SamplerThread] = []  # killed, not yet reaped
        self._reader = FrameReader()
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._messages: list[Message] = []
        self._pids: list[int] = []
        self._outgoing = b""  # the rest of a frame that the pipe accepted only in part
        self._unsent: list[list[Any]] = []
        self._received = False
        self._last_received_s: float | None = None
        self._started_at: float | None = None
        self._is_released = False  # whether samplers leave the GPUs closed
        self._is_switching = False  # whether the sampler ends because that has changed
        self._restart_at = 0.0
        self._backoff = Backoff(RESTART_MIN_S, RESTART_MAX_S)
        # While no sampler runs, the number belongs to an idle pipe without data.
        self._idle_fd, self._idle_writer_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._fd = os.dup(self._idle_fd)
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor that is readable when `read` has something to do."""
        return self._fd

    @property
    def pid(self) -> int | None:
        """The sampler's PID; None while none runs."""
        return None if self._process is None else self._process.pid

    @property
    def has_closed_gpus(self) -> bool:
        """Whether `release_gpus` is done: no process of this sampler has the GPUs open."""
        return self._is_released and self._process is not None and not (self._is_switching or self._killed)

    def release_gpus(self, is_released: bool) -> None:
        """Let the sampler end, and one follow that leaves the GPUs closed, or opens them again.

        Handles of NVML block resets, changes of MIG and upgrades of the driver; only the end of a process surely closes
        all of them.
        """
        if is_released == self._is_released:
            return
        self._is_released = is_released
        if not is_released:
            self._messages.append(SamplerLog("the GPUs are resumed, and sampled again"))
        if self._process is not None:
            assert self._process.stdin is not None
            self._is_switching = True
            self._process.stdin.close()  # its end

    def start(self) -> None:
        """Start the sampler.

        A failure becomes a SamplerLog, and `tick` tries again. Takes as long as an exec, some ms.
        """
        if self._closed or self._process is not None:
            return
        try:
            process = self._open()
        except (OSError, subprocess.SubprocessError) as error:
            self._messages.append(SamplerLog(f"the sampler cannot be started: {error}", "warning"))
            return
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        os.dup2(process.stdout.fileno(), self._fd, inheritable=False)
        process.stdout.close()
        self._process = process
        self._reader = FrameReader()
        self._received = False
        self._last_received_s = self._started_at = None
        self._is_switching = False
        self._outgoing = b""
        self._unsent = [["period", self._period_s], ["pids", self._pids]]
        self._flush()

    def _open(self) -> "subprocess.Popen[bytes] | SamplerThread":
        # safeguard: driver-never-in-agent, hung-thread-gets-process
        if self._may_share and not self._killed and not self._is_released and not has_driver():
            from chiplog_agent.stats.sampler_thread import SamplerThread  # not in agents whose sampler is a process

            return SamplerThread()
        return subprocess.Popen(
            (*self._command, *((RELEASED,) if self._is_released else ())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # its messages arrive as lines
            bufsize=0,
            close_fds=True,
        )

    def watch(self, pids: Iterable[int]) -> None:
        """Set which ranks of this node are sampled. If the pipe is full, a later `tick` sends the set.

        An unchanged set is not sent: to watch a new process under a reused PID, first pass the set without it.
        """
        wanted = sorted(set(pids))
        if len(wanted) > _PIDS_MAX:
            self._messages.append(
                SamplerLog(f"{len(wanted)} ranks exceed the limit of {_PIDS_MAX}; the rest are not sampled", "warning")
            )
            wanted = wanted[:_PIDS_MAX]
        if wanted == self._pids:
            return
        self._pids = wanted
        self._unsent = [frame for frame in self._unsent if frame[0] != "pids"] + [["pids", wanted]]
        self._flush()

    def set_period(self, period_s: float) -> None:
        """Set the time between samples. If the pipe is full, a later `tick` sends it."""
        if period_s == self._period_s:
            return
        self._period_s = period_s
        self._last_received_s = None  # it was silent by the interval before
        self._unsent = [frame for frame in self._unsent if frame[0] != "period"] + [["period", period_s]]
        self._flush()

    def read(self) -> list[Message]:
        """Return the messages that have arrived, oldest first, without waiting."""
        self._pull()
        messages, self._messages = self._messages, []
        return messages

    def tick(self, now: float) -> None:
        """Do what is due.

        `now` is monotonic, in s. Call it about once per second; the next `read` returns new messages.
        """
        if self._closed:
            return
        self._killed = [process for process in self._killed if process.poll() is None]
        if self._process is None:
            if now >= self._restart_at:
                self.restarts += 1
                self.start()
                if self._process is None:
                    self._restart_at = now + self._backoff.next_s()
            return
        if self._started_at is None:
            self._started_at = now
        code = self._process.poll()
        if code is not None:
            self._pull()  # its last messages
            if self._is_switching:
                self._drop()
                self._restart_at = now  # if it cannot be started at once
                self.start()
                return
            self._end(f"the sampler ended with {_describe(code)}", now)
            return
        if self._received or self._last_received_s is None or self._has_input():
            # Unread bytes count: if the agent itself paused, the sampler was not silent.
            self._received = False
            self._last_received_s = now
        silent_s = now - self._last_received_s
        if silent_s > max(SILENT_PERIODS * self._period_s, SILENT_MIN_S):
            self._end(f"the sampler was silent for {silent_s:.0f} s and was killed", now)
            return
        self._flush()

    def close(self) -> None:
        """End the sampler and close all descriptors. Waits at most 2 s for it. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._await_end()
        self._drop()
        for process in self._killed:
            try:
                process.wait(_CLOSE_WAIT_S / len(self._killed))
            except subprocess.TimeoutExpired:
                process.returncode = -9  # held by a driver; Popen must neither wait for it nor warn about it
        self._killed.clear()
        for descriptor in (self._fd, self._idle_fd, self._idle_writer_fd):
            os.close(descriptor)
        self._fd = -1

    def _await_end(self) -> None:
        """Let the sampler end by itself, so that it shuts the driver's library down."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        os.dup2(self._idle_fd, self._fd, inheritable=False)  # a sampler that waits to write ends, too
        self._process.stdin.close()
        try:
            self._process.wait(_END_WAIT_S)  # safeguard: sampler-ends-by-itself
        except subprocess.TimeoutExpired:
            pass  # it is killed next

    def _pull(self) -> None:
        for _ in range(_READS_MAX):
            if self._process is None:
                return
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._kill_corrupt(str(error))
                return
            # It has closed its output: it ended, or will; keep this number idle until `tick` finds the cause.
            if not data:
                os.dup2(self._idle_fd, self._fd, inheritable=False)
                return
            self._received = True
            bad_frames = self._reader.bad_frames
            try:
                values = self._reader.feed(data)
            except FrameError as error:
                self._kill_corrupt(str(error))
                return
            self.bad_frames += self._reader.bad_frames - bad_frames
            for value in values:
                self._take(value)

    def _take(self, value: Any) -> None:
        match value:
            case ["sample", int() as ts_us, str() as device, [*names], [*values]] if (
                len(names) == len(values) and len(device) <= _DEVICE_CHARS_MAX
            ):
                if {*map(type, names)} <= {str} and {*map(type, values)} <= {float}:
                    self._messages.append(Sample(ts_us, device, self._intern(tuple(names)), tuple(values)))
                else:
                    self.bad_frames += 1
            case ["line", str() as text, *levels] if levels in ([], ["info"], ["warning"]):
                self._messages.append(SamplerLog(text, *levels))
            case ["stale", str() as device] if len(device) <= _DEVICE_CHARS_MAX:
                self._messages.append(DeviceStale(device))
            case ["event", str() as kind, str() as level, str() as text, str() as device, dict() as body]:
                self._messages.append(DeviceEvent(kind, level, text, device[:_DEVICE_CHARS_MAX], body))
            case ["event", str() as kind, str() as level, str() as text, str() as device]:  # of an older sampler
                self._messages.append(DeviceEvent(kind, level, text, device[:_DEVICE_CHARS_MAX]))
            case ["facts", dict() as facts]:
                self._messages.append(NodeFacts(facts))
            case ["addresses", dict() as addresses] if all(
                type(word) is str for pair in addresses.items() for word in pair
            ):
                self._messages.append(GpuAddresses(addresses))
            case ["gpus", [*gpus]] if (known := _gpus_of(gpus)) is not None:
                self._messages.append(Gpus(known))
            case ["holders", int() as pid, [*uuids]] if all(type(uuid) is str for uuid in uuids):
                self._messages.append(Holders(pid, tuple(uuids)))
            case _:
                self.bad_frames += 1  # perhaps a kind of a newer sampler

    def _has_input(self) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return any(events & select.POLLIN for _, events in poller.poll(0))

    def _intern(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(self._names) >= _DEVICES_MAX:
            self._names.clear()
        return self._names.setdefault(names, names)

    def _flush(self) -> None:
        """Write unsent data, as far as the pipe accepts it."""
        if self._process is None or self._is_switching:
            return
        assert self._process.stdin is not None
        while self._outgoing or self._unsent:
            if not self._outgoing:
                self._outgoing = encode_frame(self._unsent.pop(0))
            try:
                written = os.write(self._process.stdin.fileno(), self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                return  # it has ended; `tick` will detect it
            self._outgoing = self._outgoing[written:]

    def _kill_corrupt(self, reason: str) -> None:
        """Kill a sampler whose output is invalid; `tick` reports its end and starts another."""
        self._messages.append(SamplerLog(f"the sampler's output cannot be read: {reason}", "warning"))
        os.dup2(self._idle_fd, self._fd, inheritable=False)
        if self._process is not None:
            self._process.kill()

    def _end(self, reason: str, now: float) -> None:
        if self._started_at is not None and now - self._started_at >= _SETTLED_S:
            self._backoff.reset()
        self._messages.append(SamplerLog(f"{reason}; a new one starts in {self._backoff.wait_s:g} s", "warning"))
        self._drop()
        self._restart_at = now + self._backoff.next_s()

    def _drop(self) -> None:
        """Kill the sampler if it still runs, and close its pipes."""
        process, self._process = self._process, None
        if process is None:
            return
        os.dup2(self._idle_fd, self._fd, inheritable=False)
        assert process.stdin is not None
        process.stdin.close()
        process.kill()
        if process.poll() is None:
            self._killed.append(process)


def _gpus_of(entries: list[Any]) -> tuple[Gpu, ...] | None:
    """Return the GPUs of a frame; None when it is invalid."""
    gpus = []
    for entry in entries:
        match entry:
            case [str() as uuid, float() as speed, [*instances]] if all(
                isinstance(of, list) and [type(value) for value in of] == [str, int, int] for of in instances
            ):
                gpus.append(Gpu(uuid, speed, tuple(MigDevice(*of) for of in instances)))
            case _:
                return None
    return tuple(gpus)


def _describe(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    hint = "; run `python -m chiplog_agent.stats` to see why" if code else ""
    return f"exit code {code}{hint}"
