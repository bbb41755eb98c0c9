"""The agent's half of sampling: starts the sampler process, reads what it says, and replaces it when it falls silent.

Nothing here waits for the sampler, and nothing here raises into the agent's loop.
"""

import os
import select
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chiplog_agent.stats.claims import Gpu, MigDevice
from chiplog_agent.stats.frames import FrameError, FrameReader, encode_frame
from chiplog_schemas.limits import KIB, SAMPLE_INTERVAL_S

SILENT_PERIODS = 10  # the host is sampled every period: a sampler that says nothing for ten is wedged …
SILENT_MIN_S = 10.0  # … but a Python start on a loaded node takes seconds, however short the period
RESTART_MIN_S = 1.0  # the pause before the first new start
RESTART_MAX_S = 60.0  # and the longest; it doubles in between
_SETTLED_S = 60.0  # a sampler that lived this long resets the pause
_READ_BYTES = 64 * KIB  # the size of a pipe
_READS_MAX = 16  # per call: 1 MiB, a frame of the largest size; a sampler that floods must not hold the loop
_CLOSE_WAIT_S = 0.5  # a killed process ends in milliseconds, unless a driver holds it: then it is left to init
_PIDS_MAX = 4096  # ranks of one node; 12 KB, which fit a pipe
_DEVICE_CHARS_MAX = 256  # a GPU's UUID has 40
_DEVICES_MAX = 4096  # column groups remembered; each rank that ever lived on the node is a device
_COMMAND = (sys.executable, "-P", "-m", "chiplog_agent.stats")


@dataclass(slots=True, frozen=True)
class Sample:
    """One device's numbers at one time: `ts_us` is µs since the epoch, UTC; names and values line up.

    `device` is a GPU's UUID, `pid:<PID>` for a rank, or empty for the host. `names` is the same object from sample to
    sample of a device as long as what it holds is the same.
    """

    ts_us: int
    device: str
    names: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(slots=True, frozen=True)
class SamplerLog:
    """One line for the agent's log: why something is absent, or what happened to the sampler."""

    text: str


@dataclass(slots=True, frozen=True)
class DeviceStale:
    """A device that has given no sample for five periods. Said once; its next sample ends it."""

    device: str


@dataclass(slots=True, frozen=True)
class DeviceEvent:
    """What happened to a device: `kind` is gpu.lost or gpu.back, `level` that of its row in `events`."""

    kind: str
    level: str
    text: str
    device: str


@dataclass(slots=True, frozen=True)
class Gpus:
    """The GPUs of the node in NVML's order, as they are from now on."""

    gpus: tuple[Gpu, ...]


@dataclass(slots=True, frozen=True)
class Holders:
    """The GPUs that the processes of a rank use now, by NVML."""

    pid: int
    uuids: tuple[str, ...]


Message = Sample | SamplerLog | DeviceStale | DeviceEvent | Gpus | Holders


class SamplerProcess:
    """The sampler process as seen by the agent's loop. `period_s` is the time between samples.

    `fileno()` keeps its number through every restart: register it once, with poll(2), select or zmq.Poller (not with
    epoll, which watches the pipe behind the number, and that changes). `bad_frames` counts what was not understood,
    `restarts` the sampler's replacements.
    """

    def __init__(self, *, period_s: float = SAMPLE_INTERVAL_S, command: tuple[str, ...] = _COMMAND) -> None:
        self.bad_frames = 0
        self.restarts = 0
        self._period_s = period_s
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []  # killed, not yet reaped
        self._reader = FrameReader()
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._messages: list[Message] = []
        self._pids: list[int] = []
        self._outgoing = b""  # of a frame that the pipe took only in part
        self._unsent: list[list[Any]] = []
        self._heard = False
        self._heard_at: float | None = None
        self._started_at: float | None = None
        self._restart_at = 0.0
        self._restart_wait_s = RESTART_MIN_S
        # While no sampler runs, our number stands for a pipe of our own that never has anything to say.
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

    def start(self) -> None:
        """Start the sampler; a failure becomes a Line, and `tick` tries again. Takes as long as an exec, some ms."""
        if self._closed or self._process is not None:
            return
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what it has to say comes as lines
                bufsize=0,
                close_fds=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._messages.append(SamplerLog(f"the sampler cannot be started: {error}"))
            return
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        os.dup2(process.stdout.fileno(), self._fd, inheritable=False)
        process.stdout.close()
        self._process = process
        self._reader = FrameReader()
        self._heard = False
        self._heard_at = self._started_at = None
        self._outgoing = b""
        self._unsent = [["period", self._period_s], ["pids", self._pids]]
        self._flush()

    def watch(self, pids: Iterable[int]) -> None:
        """Set which ranks of this node are sampled. When the pipe is full, a later `tick` says it.

        The same set again says nothing: to watch a new process under a reused PID, name the set without it first.
        """
        wanted = sorted(set(pids))
        if len(wanted) > _PIDS_MAX:
            self._messages.append(
                SamplerLog(f"{len(wanted)} ranks exceed the limit of {_PIDS_MAX}; the rest are not sampled")
            )
            wanted = wanted[:_PIDS_MAX]
        if wanted == self._pids:
            return
        self._pids = wanted
        self._unsent = [frame for frame in self._unsent if frame[0] != "pids"] + [["pids", wanted]]
        self._flush()

    def read(self) -> list[Message]:
        """Return what has arrived, oldest first, without waiting."""
        self._pull()
        messages, self._messages = self._messages, []
        return messages

    def tick(self, now: float) -> None:
        """Do what is due: `now` is monotonic, in s. Call about once per second; new Lines come with the next `read`."""
        if self._closed:
            return
        self._killed = [process for process in self._killed if process.poll() is None]
        if self._process is None:
            if now >= self._restart_at:
                self.restarts += 1
                self.start()
                if self._process is None:
                    self._back_off(now)
            return
        if self._started_at is None:
            self._started_at = now
        code = self._process.poll()
        if code is not None:
            self._pull()  # its last words
            self._end(f"the sampler ended with {_describe(code)}", now)
            return
        if self._heard or self._heard_at is None or self._has_input():
            # Unread bytes count: after a pause of the agent itself it is not the sampler that was silent.
            self._heard = False
            self._heard_at = now
        silent_s = now - self._heard_at
        if silent_s > max(SILENT_PERIODS * self._period_s, SILENT_MIN_S):
            self._end(f"the sampler said nothing for {silent_s:.0f} s and was killed", now)
            return
        self._flush()

    def close(self) -> None:
        """End the sampler and give up all descriptors. Waits at most half a second for it. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._drop()
        for process in self._killed:
            try:
                process.wait(_CLOSE_WAIT_S / len(self._killed))
            except subprocess.TimeoutExpired:
                process.returncode = -9  # held in a driver; Popen must neither wait for it nor warn about it
        self._killed.clear()
        for descriptor in (self._fd, self._idle_fd, self._idle_writer_fd):
            os.close(descriptor)
        self._fd = -1

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
            if not data:  # it has closed its output: ended, or about to; quiet our number until `tick` sees why
                os.dup2(self._idle_fd, self._fd, inheritable=False)
                return
            self._heard = True
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
                if all(type(name) is str for name in names) and all(type(number) is float for number in values):
                    self._messages.append(Sample(ts_us, device, self._intern(tuple(names)), tuple(values)))
                else:
                    self.bad_frames += 1
            case ["line", str() as text]:
                self._messages.append(SamplerLog(text))
            case ["stale", str() as device] if len(device) <= _DEVICE_CHARS_MAX:
                self._messages.append(DeviceStale(device))
            case ["event", str() as kind, str() as level, str() as text, str() as device]:
                self._messages.append(DeviceEvent(kind, level, text, device[:_DEVICE_CHARS_MAX]))
            case ["gpus", [*gpus]] if (known := _gpus_of(gpus)) is not None:
                self._messages.append(Gpus(known))
            case ["holders", int() as pid, [*uuids]] if all(type(uuid) is str for uuid in uuids):
                self._messages.append(Holders(pid, tuple(uuids)))
            case _:
                self.bad_frames += 1  # a kind that a newer sampler knows, perhaps

    def _has_input(self) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return any(events & select.POLLIN for _, events in poller.poll(0))

    def _intern(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(self._names) >= _DEVICES_MAX:
            self._names.clear()
        return self._names.setdefault(names, names)

    def _flush(self) -> None:
        """Write what is unsent, as far as the pipe takes it."""
        if self._process is None:
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
                return  # it has ended; `tick` sees it
            self._outgoing = self._outgoing[written:]

    def _kill_corrupt(self, reason: str) -> None:
        """Kill a sampler whose words make no sense; `tick` reports its end and starts another."""
        self._messages.append(SamplerLog(f"the sampler's output cannot be read: {reason}"))
        os.dup2(self._idle_fd, self._fd, inheritable=False)
        if self._process is not None:
            self._process.kill()

    def _end(self, reason: str, now: float) -> None:
        if self._started_at is not None and now - self._started_at >= _SETTLED_S:
            self._restart_wait_s = RESTART_MIN_S
        self._messages.append(SamplerLog(f"{reason}; a new one starts in {self._restart_wait_s:g} s"))
        self._drop()
        self._back_off(now)

    def _back_off(self, now: float) -> None:
        self._restart_at = now + self._restart_wait_s
        self._restart_wait_s = min(self._restart_wait_s * 2, RESTART_MAX_S)

    def _drop(self) -> None:
        """Kill the sampler if it still runs, and let go of its pipes."""
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
    """Return the GPUs of a frame; None when it is none."""
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
