"""NVML on threads that no caller waits for: one for each device, one for events, and one that starts them all."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from chiplog_agent.stats.gpu.device import GpuStats
from chiplog_agent.stats.gpu.events import GpuEvents
from chiplog_agent.stats.gpu.known_gpus import KnownGpus
from chiplog_agent.stats.gpu.nvml import (
    GpuLostError,
    GpuUnavailableError,
    address_of,
    has_driver,
    kernel_gpus,
    missing_library,
)
from chiplog_agent.stats.post_box import PostBox
from chiplog_agent.stats.source import DUE_SLACK_S
from chiplog_schemas.backoff import Backoff
from chiplog_schemas.clock import now_us
from chiplog_schemas.model.system_metrics import GPU_PROCESSES_S

CHECK_INTERVAL_S = 1.0  # between two checks whether GPUs appeared, disappeared or died
RETRY_MIN_S = 1.0  # pause before NVML is initialised again after a failure; it doubles …
RETRY_MAX_S = 3.0  # … up to this while no GPU answers: including the check before it, a device is back within 5 s, …
RETRY_BESIDE_MAX_S = 60.0  # … and up to this while other GPUs are in use, or there is no driver at all
HOLDERS_INTERVAL_S = GPU_PROCESSES_S  # between two queries which processes use a GPU, and of its MIG instances
_STOP_WAIT_S = 2.0  # for calls in progress; a call that hangs prevents another initialisation of NVML


class GpuThreads:
    """Takes one sample of each device per request, and posts it.

    `box` gets frames for the agent, and for the sampler `["known", uuid]` for each device found, `["use", uuid,
    DeviceUse]`, `["gone", uuid]` of a MIG instance, and `["restart", reason]` when only a new process can continue.
    What waits there is limited: each device is sampled only on `request`, which its owner calls as often as it empties
    the box. known: which GPUs former samplers found, and which were lost.
    """

    def __init__(self, known: KnownGpus | None = None) -> None:
        self.box = PostBox()
        self.initialised = False
        self._memory = KnownGpus() if known is None else known
        self._stats: GpuStats | None = None
        self._workers: tuple[_Worker, ...] = ()
        self._events: GpuEvents | None = None
        self._known: dict[str, None] = {}  # every device ever found, in NVML's order
        self._parents: dict[str, str] = {}  # MIG instance → its GPU
        self._declared: set[str] = set()  # the devices that were declared lost and are not back
        self._lost = set(self._memory.lost)  # the same, and those of former samplers
        self._lost_lock = threading.Lock()
        self._save_lock = threading.Lock()
        self._init_lock = threading.Lock()  # held while NVML is initialised or shut down
        self._reported: dict[str, tuple[str, ...]] = {}
        self._has_library = True
        self._is_unloaded = False  # whether that was reported
        self._backoff = Backoff(RETRY_MIN_S)
        self._retry_at = 0.0
        self._seen: tuple[Any, ...] = ()

    def start(self) -> None:
        """Start to look for GPUs. Returns at once; NVML may take seconds, or hang forever."""
        threading.Thread(target=self._supervise, name="nvml", daemon=True).start()

    def close(self) -> None:
        """Shut NVML down for good, unless a call hangs: a kill of a process with samples of GPM can freeze a GPU."""
        if self._init_lock.acquire(timeout=_STOP_WAIT_S) and self._stop_workers() and self._stats is not None:
            self._stats.close()

    def request(self) -> None:
        """Request a sample of each device. A device that is still busy takes this as its next request."""
        for worker in self._workers:
            worker.event.set()
        events = self._events  # another thread replaces them
        line, level = events.look(time.monotonic()) if events is not None else ("", "")
        if line:
            self.box.post(["line", line, level])

    def note_lost(self, uuids: Iterable[str], reason: str) -> None:
        """Declare devices lost, once each until they are back."""
        with self._lost_lock:
            fresh = [uuid for uuid in uuids if uuid not in self._declared]
            self._declared.update(fresh)
            self._lost.update(fresh)
        # safeguard: lost-gpu-is-error
        self.box.post(*(["event", "gpu.lost", "error", f"lost: {reason}", uuid, {}] for uuid in fresh))

    def note_back(self, uuid: str) -> None:
        """Record that a device answers."""
        with self._lost_lock:
            was_lost = uuid in self._lost
            self._lost.discard(uuid)
            self._declared.discard(uuid)
        if was_lost:
            self.box.post(["event", "gpu.back", "info", "the GPU is back", uuid, {}])
            self._save()  # safeguard: back-saved-while-another-hangs

    def _note_replaced(self, replaced: Mapping[str, str]) -> None:
        """Declare that GPUs will not be back: UUID → that of the GPU at its place. Their MIG instances leave, too."""
        parts = [part for part, gpu in self._parents.items() if gpu in replaced]
        for part in parts:
            del self._parents[part]
        for uuid in (*replaced, *parts):
            self._known.pop(uuid, None)
        with self._lost_lock:
            self._lost.difference_update(replaced, parts)
            self._declared.difference_update(replaced, parts)
        self.box.post(*(["gone", uuid] for uuid in (*replaced, *parts)))
        # safeguard: replaced-gpu-closed
        self.box.post(
            *(["event", "gpu.replaced", "info", f"replaced by {by}", uuid, {}] for uuid, by in replaced.items())
        )

    def _note_lost_places(self, places: Mapping[str, str]) -> None:
        """Declare those GPUs lost that NVML counts as lost: place → reason. Without a UUID their place names them."""
        devices = {place: self._memory.uuids.get(place, place) for place in places}
        for place, device in devices.items():
            self.note_lost([device], places[place])

    def _note_nameless_back(self, places: Mapping[str, str]) -> None:
        """Record that lost GPUs without a UUID answer: all but those that NVML, which has started, counts as lost."""
        with self._lost_lock:
            nameless = {device for device in self._lost if device.startswith("GPU ")}
        for device in nameless - {self._memory.uuids.get(place, place) for place in places}:
            self.note_back(device)

    def note_unloaded(self) -> None:
        """Record that the kernel has no driver any more, once until NVML works again."""
        with self._lost_lock:
            is_news, self._is_unloaded = not self._is_unloaded, True
        if is_news:  # safeguard: unloaded-driver-said-once
            text = "the NVIDIA driver is not loaded any more: this node's GPUs cannot be used"
            self.box.post(["event", "gpu.driver_unbind", "error", text, "", {}])

    def look(self, now: float) -> None:
        """Initialise NVML, and again when devices were lost or changed: at once after news, else after pauses.

        now: monotonic, s. Any call may hang.
        """
        seen = kernel_gpus() if self._stats is None else self._stats.inspect()
        if tuple(seen) != self._seen:
            self._seen = tuple(seen)
            self._backoff.reset()
            self._retry_at = now  # safeguard: news-ends-pause
        # safeguard: gpu-count-change-noticed
        is_changed = self._stats is not None and self._seen != self._stats.signature
        if (is_changed or self._is_troubled) and now >= self._retry_at:  # safeguard: nvml-retried-while-lost
            former = self._stats
            self._initialise()
            if self._stats is not None and self._stats is not former:
                self._seen = self._stats.signature
            self._backoff.max_s = RETRY_MAX_S if self._is_quick else RETRY_BESIDE_MAX_S
            self._retry_at = now + self._backoff.next_s()
        elif not self._is_troubled and not is_changed:
            self._backoff.reset()

    def _supervise(self) -> None:
        self._post_addresses()
        while True:
            with self._init_lock:
                self.look(time.monotonic())
            self._save()
            time.sleep(CHECK_INTERVAL_S)

    def _post_addresses(self) -> None:
        """Post where GPUs are plugged in, also lost ones: events name them by that, and come before the facts."""
        places = self._memory.uuids.items()
        self.box.post(["addresses", {uuid: address for place, uuid in places if (address := address_of(place))}])

    def _save(self) -> None:
        """Write which GPUs are lost, from any thread."""
        with self._save_lock:
            with self._lost_lock:
                lost = frozenset(self._lost)
            self._memory.save(lost)

    @property
    def _is_troubled(self) -> bool:
        if self._stats is None or not self._stats.is_whole:
            return True
        if self._events is not None and self._events.is_stopping:  # safeguard: events-watched-after-hang
            return True  # it did not end in time, and nothing else has begun since
        return any(worker.is_dead for worker in self._workers)

    @property
    def _is_quick(self) -> bool:
        """Return True if NVML may be initialised often: no device is in use, and a driver exists."""
        return self._has_library and all(worker.is_dead for worker in self._workers)

    def _initialise(self) -> None:
        if not self._stop_workers():
            return  # a call hangs, and would also hang NVML's shutdown
        if self._stats is not None:
            self._stats.close()  # safeguard: nvml-closed-before-retry
            self._stats = None
        try:
            stats = GpuStats()
        except GpuUnavailableError as error:
            self._has_library = error.has_library
            if error.is_stale and self._known:
                self.box.post(["restart", f"the driver was replaced: {error}"])
            if error.is_unloaded and self._known:
                self.note_unloaded()
            self.note_lost(self._known, str(error))
            self._note_lost_places(error.lost)
            self._emit("nvml", str(error), level="warning" if error.is_fault else "info")
        except Exception as error:  # an unknown version of pynvml; the host's samples continue
            self._emit("nvml", f"hw.* is absent: {type(error).__name__}: {error}")
        else:
            self._begin(stats)
        self.initialised = True  # NVML has answered

    def _begin(self, stats: GpuStats) -> None:
        self._stats = stats
        self._is_unloaded = False
        self._emit("nvml", *stats.lines)
        self._note_replaced(self._memory.note(stats.places))
        self._post_addresses()  # safeguard: addresses-before-events
        self._events = stats.events(self.box.post, lambda line: self._emit("events", line))
        self._events.start()
        self._start_workers(stats)
        self._save()
        gpus = stats.describe()  # a GPU that hangs here blocks this thread, while the others are sampled
        self._emit("mig", *stats.lines_of_mig)
        self._start_workers(stats)  # of MIG instances
        self._forget_instances(stats)
        self._note_lost_places(stats.lost)
        self._note_nameless_back(stats.lost)
        self.note_lost([uuid for uuid in self._known if uuid not in stats.devices], "NVML no longer shows it")
        self.box.post(["gpus", gpus])
        self.box.post(["facts", stats.facts()])

    def _forget_instances(self, stats: GpuStats) -> None:
        """Forget MIG instances that are gone from GPUs that answer: an administrator removed them."""
        present = set(stats.devices)
        gone = [uuid for uuid, parent in self._parents.items() if parent in present and uuid not in present]
        for uuid in gone:  # safeguard: removed-instance-is-not-lost
            self._known.pop(uuid, None)
            del self._parents[uuid]
        with self._lost_lock:
            self._lost.difference_update(gone)
            self._declared.difference_update(gone)
        self.box.post(*(["gone", uuid] for uuid in gone))
        self._parents |= {instance.uuid: gpu.uuid for gpu in stats.gpus for instance in gpu.instances}

    def _start_workers(self, stats: GpuStats) -> None:
        fresh = [_Worker(self, stats, uuid) for uuid in stats.devices[len(self._workers) :]]
        self.box.post(*(["known", worker.uuid] for worker in fresh))
        self._known |= dict.fromkeys(worker.uuid for worker in fresh)
        for worker in fresh:
            worker.start()
        self._workers += tuple(fresh)

    def _emit(self, about: str, *lines: str, level: str = "info") -> None:
        """Post reasons, unless they are the same as last time."""
        if lines != self._reported.get(about, ()):
            self._reported[about] = lines
            self.box.post(*(["line", line, level] for line in lines))

    def _stop_workers(self) -> bool:
        """End the threads of devices and events. Return False, and leave devices running, if one is inside a call."""
        deadline = time.monotonic() + _STOP_WAIT_S
        for worker in self._workers:  # without the others' locks: while one hangs, the others are sampled
            if not worker.lock.acquire(timeout=max(deadline - time.monotonic(), 0.01)):
                return False
            worker.lock.release()
        held = []
        for worker in self._workers:
            if not worker.lock.acquire(timeout=max(deadline - time.monotonic(), 0.01)):
                break
            held.append(worker)
        is_stopped = len(held) == len(self._workers) and self._stop_events(deadline)
        for worker in held:
            worker.is_stopped = is_stopped  # safeguard: nvml-open-under-hung-call
            worker.lock.release()
            worker.event.set()
        if is_stopped:
            self._workers = ()
        return is_stopped

    def _stop_events(self, deadline: float) -> bool:
        if self._events is not None:
            self._events.request_stop()
            if not self._events.join(deadline - time.monotonic()):  # safeguard: nvml-open-under-events
                return False
            self._events = None
        return True


class AbsentGpus:
    """Takes the place of `GpuThreads` without a driver: reports that once, and ends the sampler when one appears."""

    def __init__(self) -> None:
        self.box = PostBox()
        self.initialised = True
        self._check_at = time.monotonic() + RETRY_BESIDE_MAX_S

    def start(self) -> None:
        """Report the reason."""
        if (reason := missing_library()) is not None:
            self.box.post(["line", reason])

    def close(self) -> None:
        """Do nothing: there is no driver."""

    def request(self) -> None:
        """Check from time to time whether a driver was installed: only a process may use it."""
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + RETRY_BESIDE_MAX_S
            if has_driver():
                self.box.post(["restart", "an NVIDIA driver appeared"])  # safeguard: new-driver-ends-thread


class ReleasedGpus(AbsentGpus):
    """Takes the place of `GpuThreads` while an operator wants the GPUs closed: NVML is not even loaded."""

    def start(self) -> None:
        """Report it."""
        self.box.post(["line", "hw.* is absent: the GPUs are released until `chiplog agent gpu resume`"])

    def request(self) -> None:
        """Do nothing: the agent replaces this process when they are resumed."""


class _Worker:
    """The thread of one device. It holds `lock` while it is inside of NVML."""

    def __init__(self, threads: GpuThreads, stats: GpuStats, uuid: str) -> None:
        self.event = threading.Event()
        self.lock = threading.Lock()
        self.is_stopped = False
        self.is_dead = False  # whether the device did not answer the last sample
        self._threads = threads
        self._stats = stats
        self.uuid = uuid
        self._holders_at = 0.0

    def start(self) -> None:
        self.event.set()  # requests the first sample
        threading.Thread(target=self._run, name=self.uuid, daemon=True).start()

    def _run(self) -> None:
        self.event.wait()
        while self.serve():
            self.event.wait()

    def serve(self) -> bool:
        """Take the sample that was requested. Return False if it is the last one."""
        self.event.clear()
        with self.lock:
            if self.is_stopped:
                return False
            try:
                self._sample()
            except GpuLostError as error:
                self.is_dead = True
                if error.is_unloaded:
                    self._threads.note_unloaded()
                self._threads.note_lost([self.uuid], str(error))
            except Exception as error:  # this device becomes stale, and the others continue
                line = f"{self.uuid}: sampling has ended: {type(error).__name__}: {error}"
                self._threads.box.post(["line", line, "warning"])
                return False
            return True

    def _sample(self) -> None:
        now = time.monotonic()
        groups, lines = self._stats.sample(self.uuid, now)
        ts_us = now_us()
        self.is_dead = not groups
        if groups:
            self._threads.note_back(self.uuid)
        self._threads.box.post(
            *(["sample", ts_us, self.uuid, names, values] for names, values in groups),
            *(["line", line] for line in lines),
        )
        if now - self._holders_at >= HOLDERS_INTERVAL_S - DUE_SLACK_S:
            self._holders_at = now
            use, lines = self._stats.use(self.uuid, now)
            self._stats.check_layout(self.uuid)
            self._threads.box.post(["use", self.uuid, use], *(["line", line] for line in lines))
