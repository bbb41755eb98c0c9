"""Values that one run logs from devices: promised at once, and appended when they are copied."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep, time_ns
from typing import Any

from chiplog.journal.deferred import DeferredEvents
from chiplog.recording.log.loop_calls import LoopCalls
from chiplog.recording.log.value_events import ValueEvents
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostic, Diagnostics, error_text
from chiplog.torch.backends import BACKENDS
from chiplog.torch.current_device import CurrentDevice, current_device
from chiplog.torch.device_values import DeviceValues
from chiplog.torch.poller import TorchPoller
from chiplog_schemas.limits import FINISH_WAIT_S

_DEVICE_WAIT_S = FINISH_WAIT_S / 4  # part of finish()'s time: for values that are being copied from a device
_SUMMARY_WAIT_S = 1.0  # a reader of the summary asked for values that a device has to compute first
_POLL_INTERVAL_S = 0.001

Make = Callable[[list[float]], Mapping[str, float]]  # builds metrics from the numbers of tensors


class DeviceEvents:
    """The events of one run whose values devices have. calls: has its journal, timing and current step."""

    def __init__(self, calls: LoopCalls, values: ValueEvents, diagnostics: Diagnostics) -> None:
        self._calls = calls
        self._values = values
        self._diagnostics = diagnostics
        self._report_internal_error = diagnostics.report_internal_error
        self._begin()

    def _begin(self) -> None:
        self.current: CurrentDevice | None = None  # the device that torch uses
        self.deferred = DeferredEvents(lambda: self._calls._journal, self._note_unreadable)
        self._poller = TorchPoller(self.deferred, self._calls._timing, self._values.append_times)
        self._rings = DeviceValues(self.deferred, self._values.append_resolved, self._diagnostics.report)

    def begin_in_child(self) -> object:
        """Begin again in a forked child. Return what the child must not destroy: CUDA ends a child that does."""
        kept = self.deferred, self._rings, self._calls._timing.forget()
        self._begin()
        return kept

    def log(self, step: int, tensors: Mapping[str, Any]) -> None:
        """Log tensors of one element each, by key."""
        self._rings.log_scalars(sys.modules["torch"], step, tensors)

    def log_made(self, step: int, tensors: Sequence[Any], make: Make) -> None:
        """Log what `make` returns for the numbers of tensors: at once on the host, else once they are copied."""
        if tensors[0].device.type in BACKENDS:
            self._rings.submit(sys.modules["torch"], step, tensors, make)
        else:
            numbers = [number for tensor in tensors for number in tensor.reshape(-1).tolist()]
            self._values.append_resolved(step, time_ns() // 1000, make(numbers))

    def find_current(self) -> None:
        """Find the GPU that torch uses, once it uses one. Only in the main thread: each thread has its own."""
        if self.current is None and threading.current_thread() is threading.main_thread():
            try:
                self.current = current_device()
            except (RuntimeError, AssertionError, AttributeError) as error:  # a lost device: any call of torch fails
                self._diagnostics.report_internal_error("log", error)

    def poll(self) -> None:
        """Append what is ready, and the allocator's statistics if they are due. The sender thread calls this."""
        if statistics := self._poller.poll(monotonic()):
            self._values.append_resolved(self._calls._last_step, time_ns() // 1000, statistics)

    @never_raises("summary")
    def wait(self) -> None:
        """Wait briefly for values that were logged before: the summary is asked for them."""
        deadline = monotonic() + _SUMMARY_WAIT_S
        while self.deferred.pending and monotonic() < deadline:
            self.deferred.poll()
            if self.deferred.pending:
                sleep(_POLL_INTERVAL_S)

    def close(self) -> None:
        """Append what becomes ready soon, and declare the rest lost: the run ends."""
        self.deferred.close(_DEVICE_WAIT_S, "values on a device: not copied when the run finished")

    def _note_unreadable(self, error: Exception) -> None:
        message = f"values on a device could not be read: {error_text(error)}; they are declared lost"
        self._diagnostics.report(Diagnostic("device_values_dropped", "unreadable", message))
