"""Events of GPUs, on a thread of its own: XIDs and uncorrectable memory errors, every one in its order.

NVML keeps what happens between two calls, so none is lost while the thread is busy.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from chiplog_agent.stats.frames import Gpu
from chiplog_agent.stats.gpu.nvml import Handle, Nvml, dead_codes
from chiplog_agent.stats.gpu.xids import xid_of

WAIT_MS = 1000  # of one call; the thread ends within this time
_PAUSE_S = 1.0  # after a failed call, as while a GPU is lost
_HELD_S = 10.0  # a call that the driver holds for this long hangs …
_HELD_LOOKS = 5  # … unless this process was stopped in between
_LOOK_S = 1.0  # looks closer together count as one: with a short interval, many fit in one wait

Post = Callable[..., None]


class GpuEvents:
    """The events of GPUs from one initialisation of NVML until the next.

    handles: of the GPUs, by UUID. gpus: returns them with the MIG instances that are known. post: takes frames for the
    agent, and report lines with the reasons why events are absent, both from any thread. The same line may come often.
    """

    def __init__(
        self, nvml: Nvml, handles: dict[str, Handle], gpus: Callable[[], list[Gpu]], post: Post, report: Post
    ) -> None:
        self._nvml = nvml
        self._handles = handles
        self._gpus = gpus
        self._post = post
        self._report = report
        self._set: Any = None
        self._stop = threading.Event()
        self._has_ended = threading.Event()
        self._n_calls = 0  # that wait for events
        self._seen: tuple[int, float, int] = (-1, 0.0, 0)  # that number, since when, and how often it was the same
        self._counted_at = 0.0  # when that was last counted
        self._is_held = False

    def start(self) -> None:
        """Start the thread. It registers too: each call of NVML may hang."""
        threading.Thread(target=self._run, name="nvml-events", daemon=True).start()

    @property
    def is_stopping(self) -> bool:
        """Whether the thread has been told to end, or has ended for that."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Let the thread end when its call returns."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Return True if the thread has ended. Until then NVML must not be shut down."""
        return self._has_ended.wait(max(timeout_s, 0.0))

    def look(self, now: float) -> tuple[str, str]:
        """Return a line and its level when the driver holds the thread, and when it lets it continue; "" without news.

        now: monotonic, s. Call it each interval, from one thread.
        """
        n_calls, since, looks = self._seen
        if n_calls != self._n_calls or self._has_ended.is_set():
            self._seen, self._counted_at = (self._n_calls, now, 0), now
            was_held, self._is_held = self._is_held, False
            return "the driver answers again: events of GPUs arrive" if was_held else "", "info"
        if now - self._counted_at >= _LOOK_S:
            looks += 1
            self._seen, self._counted_at = (n_calls, since, looks), now
        if self._is_held or looks <= _HELD_LOOKS or now - since < _HELD_S:
            return "", ""
        self._is_held = True  # safeguard: held-wait-said-once
        held = f"events of GPUs do not arrive: a call of the driver that waits for them hangs for {now - since:.0f} s"
        return held, "warning"

    def register(self) -> bool:
        """Register for the events of all GPUs, and report which are absent. Return False if all are."""
        nvml, missing = self._nvml, []
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._report(f"events of GPUs are absent: {error}")
            return False
        for uuid, handle in self._handles.items():
            try:
                kinds = nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
                if not kinds:
                    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
                nvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
            except nvml.NVMLError as error:
                missing.append((uuid, str(error)))
        if missing:
            what = "; ".join(f"{uuid}: {reason}" for uuid, reason in missing)
            self._report(f"events of GPUs are absent: {what}")
        return len(missing) < len(self._handles)

    def take(self, wait_ms: int) -> bool:
        """Wait for one event and post it. Return False if there was none in time. Raises NVML's errors."""
        try:
            data = self._nvml.nvmlEventSetWait_v2(self._set, wait_ms)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_TIMEOUT:
                return False
            raise
        self._post(self._frame(data))
        return True

    def close(self) -> None:
        """Take what has happened until now, and free the set."""
        if self._set is None:
            return
        try:
            while self.take(0):  # safeguard: last-events-taken
                pass
        except self._nvml.NVMLError:
            pass  # a GPU or the driver is lost
        try:
            self._nvml.nvmlEventSetFree(self._set)
        except self._nvml.NVMLError:
            pass  # NVML is no longer initialised, and has freed it
        self._set = None

    def _run(self) -> None:
        try:
            if self.register():
                self._follow()
            self.close()
        except Exception as error:  # an unknown version of pynvml; samples continue
            self._report(f"events of GPUs are absent: {type(error).__name__}: {error}")
        finally:
            self._has_ended.set()

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._n_calls += 1
            try:
                self.take(WAIT_MS)  # safeguard: every-event-posted
            except self._nvml.NVMLError as error:
                if error.value not in dead_codes(self._nvml):  # samples report what is lost
                    self._report(f"events of GPUs are absent, as long as the wait for them fails: {error}")
                self._stop.wait(_PAUSE_S)

    def _frame(self, data: Any) -> list[Any]:
        """Return the frame of an event. Its text names no device: the agent adds that."""
        nvml, uuid = self._nvml, self._uuid(data.device)
        instances = [of for gpu in self._gpus() if gpu.uuid == uuid for of in gpu.instances]
        numbers = data.gpuInstanceId, data.computeInstanceId
        # The MIG instance that it is about; the GPU itself if it is about all of it, which concerns each instance.
        device = next((of.uuid for of in instances if (of.gpu_instance, of.compute_instance) == numbers), uuid)
        body: dict[str, Any] = {"pci": self._pci(data.device)}
        if device != uuid:
            body["gpu"] = uuid
        elif instances:
            body["instances"] = [of.uuid for of in instances]
        if data.eventType == nvml.nvmlEventTypeXidCriticalError:
            code = int(data.eventData)
            xid = xid_of(code)
            body |= {"code": code, "severity": xid.severity, "advice": xid.advice}
            return ["event", "gpu.xid", xid.severity, f"XID {code}: {xid.text}", device, body]
        text = "memory had an error that ECC could not correct"
        return ["event", "gpu.ecc_uncorrected", "error", text, device, body]

    def _uuid(self, handle: Handle) -> str:
        try:
            return str(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError:  # it is lost, and its last event says why
            return next((uuid for uuid, known in self._handles.items() if _address(known) == _address(handle)), "")

    def _pci(self, handle: Handle) -> str:
        try:
            return str(self._nvml.nvmlDeviceGetPciInfo(handle).busId)
        except self._nvml.NVMLError:
            return ""


def _address(handle: Handle) -> int:
    """Return what tells two handles apart."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
