"""Random schedules of what can befall GPUs, against the threads of GPUs on one thread with a clock by hand.

    LD_LIBRARY_PATH=<folder of the stand-in> FAKE_NVML_CONTROL=<file> python -m tests.support.gpu_schedules SEED COUNT

Each second, random orders go to the stand-in for NVIDIA's library, and every thread makes a step unless its call hangs.
Prints as JSON what was done; an AssertionError names the seed.
"""

import ctypes
import json
import os
import random
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from chiplog_agent.stats.gpu import device as gpu_device
from chiplog_agent.stats.gpu import nvml
from chiplog_agent.stats.gpu import threads as gpu_threads
from chiplog_agent.stats.gpu.events import GpuEvents

BACK_S = 5  # a device is back within this time …
BACK_AFTER_HANG_S = gpu_threads.RETRY_BESIDE_MAX_S + BACK_S  # … after a hang also within one pause
ORDERS_S = 30  # of each schedule; then all is well, and stays so
CALM_S = 40  # without orders, once in most schedules: then the pauses between attempts are long
GPUS = [f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in range(4)]
ADDRESSES = [f"0000:1{index}:00.0" for index in range(len(GPUS))]  # the kernel lists all of them always
INSTANCES = [f"MIG-00000001-0000-0000-0000-00000000000{index}" for index in range(2)]
FAILING = ("f{}.186=fails", "f{}.83=no", "f{}.144=fails", "gpm{}=fails", "f{}.198=no")
HOST_BYTES_MAX = 16 << 20  # that the process may grow by, after the first schedules


class Clock:
    """In the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class SteppedWorker(gpu_threads._Worker):
    """The thread of a device, by hand."""

    is_hanging = False

    def start(self) -> None:
        self.event.set()

    def hang(self) -> None:
        """Be inside of a call from now on."""
        self.lock.acquire()
        self.is_hanging = True

    def answer(self) -> None:
        """Return from the call."""
        self.is_hanging = False
        self.lock.release()

    def step(self) -> None:
        if self.event.is_set() and not self.is_hanging and not self.is_stopped:
            self.serve()


class SteppedEvents(GpuEvents):
    """The thread of events, by hand."""

    is_registered: bool | None = None
    is_hanging = False
    registered_at = 0.0
    uuid = ""

    def start(self) -> None:
        """Register at the next step, as the thread does some time after its start."""

    def join(self, timeout_s: float) -> bool:
        if not self.is_hanging:
            self.close()
        return not self.is_hanging

    def hang(self) -> None:
        """Be inside of a call from now on."""
        self.is_hanging = True

    def answer(self) -> None:
        """Return from the call; the thread ends if it shall."""
        self.is_hanging = False
        if self.is_stopping:
            self.close()

    def step(self) -> None:
        if self.is_hanging or self.is_stopping:
            return
        try:
            if self.is_registered is None:
                self.is_registered = self.register()
                self.registered_at = gpu_threads.time.monotonic()
                if not self.is_registered:
                    self.close()  # the thread ends
            while self.is_registered and self.take(0):
                pass
        except self._nvml.NVMLError:
            pass  # the thread pauses, and continues


class Schedule:
    """One schedule. `counts` is what was done."""

    def __init__(self, seed: int, clock: Clock, library: Any, control: Path) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = clock
        self.library = library
        self.control = control
        self.bus = [control.parent / "bus" / address / "config" for address in ADDRESSES]
        self.counts: Counter[str] = Counter()
        self.n_gpus = 2
        self.lost: dict[int, str] = {}  # and the word: NVML shows it, or only the PCI bus does
        self.failing: set[str] = set()
        self.node_word = ""  # `unloaded` or `uninit`
        self.is_mig = False
        self.hanging: SteppedWorker | SteppedEvents | None = None
        self.xids: list[tuple[str, int]] = []
        self.expected: list[tuple[str, int]] = []
        self.found: list[tuple[str, int]] = []
        self.well_since = dict.fromkeys([*GPUS, *INSTANCES], clock.now)
        self.hung_until = 0.0
        self.sampled_at: dict[str, float] = {}
        self.lost_now: set[str] = set()
        self.n_unloaded = self.n_unbound = 0
        library.fake_delivered.value = 0
        self.tell()
        self.threads = gpu_threads.GpuThreads()

    def run(self) -> None:
        calm_at = self.random.choice([0, 10, 15, 25])
        for second in range(ORDERS_S):
            if second > BACK_S:
                self.order()
            self.turn()
            if second == calm_at > 0:
                self.turn(CALM_S)
                self.settle()
                self.turn(BACK_S + 2)
        self.settle()
        self.turn(int(BACK_AFTER_HANG_S if self.hung_until else BACK_S) + 3)
        for uuid in self.present():
            assert self.sampled_at.get(uuid, 0.0) >= self.clock.now - 1, (self.seed, uuid, "is not back")
        assert not self.lost_now & set(self.present()), (self.seed, self.lost_now)
        last = [(uuid, 79) for uuid in self.present() if uuid in GPUS]
        self.xids += last
        self.expected += last
        self.tell()
        self.turn()
        self.threads.close()
        self.take_posts()
        self.threads.box.close()
        assert self.found == self.expected, (self.seed, "events", self.found, self.expected)
        assert self.n_unbound <= self.n_unloaded, (self.seed, "driver_unbind", self.n_unbound, self.n_unloaded)
        assert not self.library.fake_sets.value and not self.library.fake_samples.value, (self.seed, "NVML's objects")

    def present(self) -> list[str]:
        """Return the devices that should answer."""
        if self.node_word:
            return []
        gpus = [GPUS[index] for index in range(self.n_gpus) if index not in self.lost]
        return gpus + (INSTANCES if self.is_mig and GPUS[1] in gpus else [])

    def order(self) -> None:
        """Let something happen, or end."""
        if self.node_word and self.random.random() < 0.4:
            self.node_word = ""
        what = self.random.choice(
            ["nothing", "nothing", "reload", "uninit", "lose", "find", "count", "mig", "fail", "hang", "xid", "xid"]
        )
        match what:
            case "reload" | "uninit":
                word = "unloaded" if what == "reload" else "uninit"
                self.n_unloaded += word == "unloaded" and not self.node_word
                self.node_word = "" if self.node_word else word
            case "lose":
                self.lost.setdefault(self.random.randrange(self.n_gpus), self.random.choice(["lost", "off"]))
            case "find":
                self.lost.clear()
            case "count":
                self.n_gpus = self.random.randint(1, len(GPUS))
                self.lost = {index: word for index, word in self.lost.items() if index < self.n_gpus}
            case "mig":
                self.is_mig = not self.is_mig
            case "fail":
                word = self.random.choice(FAILING).format(self.random.randrange(self.n_gpus))
                self.failing ^= {word}
            case "hang":
                self.toggle_hang()
            case "xid":
                self.raise_xid()
        self.counts[what] += 1
        self.tell()

    def toggle_hang(self) -> None:
        running = [*self.threads._workers, *([self.threads._events] if self.threads._events is not None else [])]
        if self.hanging is not None:
            self.hanging.answer()
            self.hanging = None
        elif running:
            self.hanging = self.random.choice(running)
            self.hanging.hang()

    def raise_xid(self) -> None:
        """Let a GPU have an XID. One that NVML watches must be reported."""
        uuid = self.random.choice(GPUS)
        xid = uuid, self.random.choice([13, 31, 63, 79, 94, 4711])
        self.xids.append(xid)
        events = self.threads._events
        if isinstance(self.hanging, SteppedEvents) or (events is not None and events.is_stopping):
            is_well = False  # NVML may be initialised anew before the thread takes it
        else:
            is_well = events is not None and self.well_since[uuid] < events.registered_at
        if is_well and uuid in self.present() and events.is_registered and uuid in events._handles:
            self.expected.append(xid)
        else:
            self.counts["xids that nobody watches"] += 1
            self.xids[-1] = "", 0  # the driver queues it for nobody

    def settle(self) -> None:
        self.lost.clear()
        self.failing.clear()
        self.node_word = ""
        if self.hanging is not None:
            self.toggle_hang()
        self.tell()

    def tell(self) -> None:
        words = [
            f"gpus={self.n_gpus}",
            self.node_word,
            *self.failing,
            *(f"{word}{index}" for index, word in self.lost.items()),
        ]
        for index, bus in enumerate(self.bus):
            bus.write_bytes(b"\xff" * 4 if self.lost.get(index) == "off" else b"\xde\x10\x30\x23")
        xids = ",".join(f"{GPUS.index(uuid) if uuid else 7}:{code}" for uuid, code in self.xids)
        self.control.write_text(" ".join([*words, "mig1" if self.is_mig else "", f"xids={xids}" if xids else ""]))
        self.library.reread()

    def turn(self, seconds: int = 1) -> None:
        """Let a time pass."""
        for _ in range(seconds):
            self.clock.now += 1
            self.threads.request()
            self.step()
            self.threads.look(self.clock.now)
            self.step()
            self.take_posts()
            self.check()

    def step(self) -> None:
        for worker in self.threads._workers:
            worker.step()
        if self.threads._events is not None:
            self.threads._events.step()

    def take_posts(self) -> None:
        box = self.threads.box
        while box.messages:
            match box.messages.popleft():
                case ["sample", _, uuid, _, _]:
                    self.sampled_at[uuid] = self.clock.now
                    assert uuid not in self.lost_now, (self.seed, uuid, "answers, and is not back")
                case ["event", "gpu.lost", "error", _, uuid, _]:
                    assert uuid not in self.lost_now, (self.seed, uuid, "lost twice")
                    self.lost_now.add(uuid)
                case ["event", "gpu.back", "info", _, uuid, _]:
                    self.lost_now.remove(uuid)
                case ["event", "gpu.driver_unbind", _, _, "", _]:
                    self.n_unbound += 1
                case ["event", "gpu.xid", _, _, uuid, body]:
                    self.found.append((uuid, body["code"]))
                case ["gone", uuid]:
                    self.lost_now.discard(uuid)

    def check(self) -> None:
        """Check that each device that has been well for a while answers, also while another one hangs."""
        now, present = self.clock.now, self.present()
        if self.hanging is not None:
            self.hung_until = now
        for uuid in self.well_since:
            if uuid not in present or (self.hanging is not None and self.hanging.uuid == uuid):
                self.well_since[uuid] = now
        pause_s = BACK_AFTER_HANG_S if now - self.hung_until < BACK_AFTER_HANG_S else BACK_S
        for uuid in present:
            since = self.well_since[uuid]
            if self.sampled_at.get(uuid, 0.0) < since:  # NVML is not initialised again while a call hangs
                since = max(since, self.hung_until)
            if now - since > pause_s:
                assert self.sampled_at.get(uuid, 0.0) >= now - 1, (self.seed, uuid, "does not answer")


class Library:
    """The stand-in's handles for tests."""

    def __init__(self) -> None:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        self.reread = library.fake_reread
        self.fake_delivered = ctypes.c_int.in_dll(library, "fake_delivered")
        self.fake_sets = ctypes.c_int.in_dll(library, "fake_event_sets")
        self.fake_samples = ctypes.c_int.in_dll(library, "fake_gpm_samples")


def usage() -> tuple[int, int]:
    """Return the descriptors of this process, and its memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    seed, count = map(int, sys.argv[1:])
    clock, control = Clock(), Path(os.environ["FAKE_NVML_CONTROL"])
    library = Library()
    counts: Counter[str] = Counter()
    before = usage()
    for address in ADDRESSES:
        for name in ("bus", "gpus"):
            (control.parent / name / address).mkdir(parents=True, exist_ok=True)
    kernel_gpus = partial(nvml.kernel_gpus, str(control.parent / "gpus"), str(control.parent / "bus"))
    with (
        mock.patch.object(gpu_device, "kernel_gpus", kernel_gpus),
        mock.patch.object(gpu_threads, "kernel_gpus", kernel_gpus),
        mock.patch.object(gpu_threads, "time", clock),
        mock.patch.object(gpu_threads, "_Worker", SteppedWorker),
        mock.patch.object(gpu_device, "GpuEvents", SteppedEvents),
        mock.patch.object(gpu_threads, "_STOP_WAIT_S", 0.0),
    ):
        for number in range(count):
            schedule = Schedule(seed + number, clock, library, control)
            schedule.run()
            counts += schedule.counts
            counts["xids reported"] += len(schedule.found)
            if number == min(count - 1, 20):
                before = usage()
    after = usage()
    assert after[0] == before[0], ("descriptors", before, after)
    assert after[1] - before[1] < HOST_BYTES_MAX, ("memory", before, after)
    print(json.dumps(counts | {"schedules": count, "grown_bytes": after[1] - before[1]}))


if __name__ == "__main__":
    main()
