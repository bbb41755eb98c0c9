"""What is behind `log()`, `phase()` and `step()`: values, steps and phases as events. Raises nothing."""

import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from time import monotonic, perf_counter, sleep, time_ns
from typing import Any

from chiplog.journal.deferred import DeferredEvents
from chiplog.journal.event_sink import LazyJournal, NullJournal
from chiplog.recording.log.given_step import parse_step
from chiplog.recording.log.logged_dict import DictSorter
from chiplog.recording.log.logged_keys import LoggedKeys
from chiplog.recording.log.loop_calls import NO_STEP, STEP_MAX, LoopCalls
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostic, Diagnostics, error_text
from chiplog.safety.dynamo import dynamo_disable
from chiplog.safety.lenient_calls import (
    NO_DATA,
    ignore_unknown_arguments,
    split_unknown,
)
from chiplog.safety.process_number import PAGE, process_number
from chiplog.safety.text import clean_utf8, short_repr
from chiplog.timing.phases import DATA, GC, STEP, Phase, Timing
from chiplog.timing.stall_detector import StallDetector
from chiplog.timing.steps import Step, Steps, TimedLoader
from chiplog.torch.backends import BACKENDS
from chiplog.torch.device_values import DeviceValues
from chiplog.torch.poller import TorchPoller
from chiplog.torch.watch import Watch
from chiplog.values.logged_values import LoggedValues
from chiplog.values.metrics import Media
from chiplog_schemas.codec import pack, packer
from chiplog_schemas.interrupts import is_interrupt
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.limits import KEY_BYTES_MAX
from chiplog_schemas.model.events import EventKind, encode

_INT_BYTES_MAX = 9  # of msgpack
_WATCHES_MAX = 64  # models; each is checked before every step of an optimizer
_SHAPES_MAX = 4096  # cached tuples of keys; a script that generates more takes the slow path
_POLL_WAIT_S = 0.05  # part of finish()'s one second: to wait while the sender thread flushes the open step
_SUMMARY_WAIT_S = 1.0  # a reader of the summary asked for values that a device has to compute first
_POLL_INTERVAL_S = 0.001
_SHAPE_KEYS_MAX = 200_000  # keys in all of them: about 20 MB


class Recorder(LoopCalls):
    """Append what training logs to a journal, as events. `Run` adds an identity and an end.

    It is a base class, not a member: one more call would cost a part of `log()`.
    """

    def __init__(self, bounds: Limits) -> None:
        self._bounds = bounds
        self._process = process_number()
        self._journal = NullJournal()
        self._finished = False
        self._pack = packer().pack
        self._key_sets = {}
        self._logged = LoggedValues()
        self._shape_keys = 0
        self._keys = LoggedKeys(bounds.keys_max, lambda key, limit: self._diagnostics.report_too_many_keys(key, limit))
        self._sorter = DictSorter(self._keys, self._emit, self._log_media, lambda bad: self._diagnostics.report(bad))
        self._begin_count()
        self._first_step_phases = []
        self._diagnostics = Diagnostics(self._emit)
        self._timing = Timing(lambda bad: self._diagnostics.report(bad))
        self._steps = Steps(self._timing)
        self._stalls = StallDetector(self._timing, self._steps, self._emit)
        self._phases = {}
        self._step_block = Step(self._enter_step, self._end_step)
        self._begin_devices()

    def _begin_count(self) -> None:
        """Reset the step count to that of a label that has logged nothing."""
        self._top_step = NO_STEP
        self._next_step = self._starting_step = 0
        self._last_step = 0
        self._steps_per_log = 1
        self._former_next_step, self._former_top_step = 0, NO_STEP
        self._ended_step: int | None = None  # by the last `with run.step():`

    def _begin_devices(self) -> None:
        self._is_polling = False  # the sender thread polls the open step
        self._per_step_callbacks = []
        self._deferred = DeferredEvents(lambda: self._journal, self._note_unreadable)
        self._torch_poller = TorchPoller(self._deferred, self._timing, self._append_times)
        self._watches: list[Watch] = []
        self._devices = DeviceValues(self._deferred, self._append_resolved, lambda bad: self._diagnostics.report(bad))

    @property
    def id(self) -> str:
        """The run ID."""
        raise NotImplementedError

    def _follow_fork(self) -> None:
        """In a forked child: leave the parent's journal, unless this has been done. `Run` knows how."""
        self._process = process_number()

    # -- logging --

    def _log_with_options(
        self, data: Mapping[str, Any], step: Any, more: tuple[Any, ...], unknown: dict[str, Any]
    ) -> None:
        """Log a call with arguments of other loggers, and the first one in a forked child.

        commit=False: the next call without a step has the same step.
        """
        self._follow_fork()
        if more and type(more[0]) is bool and "commit" not in unknown:  # its place in W&B's log()
            unknown["commit"], more = more[0], more[1:]
        stays = unknown.pop("commit", None) is False  # safeguard: uncommitted-call-keeps-step
        if unknown or more:
            data, bad = split_unknown(data, more, unknown)
            self._diagnostics.report(bad)
        self.log(data, step)
        if stays and data is not NO_DATA and self._steps_per_log and self._last_step == self._top_step:
            self._next_step, self._top_step = self._last_step, max(self._last_step - 1, NO_STEP)

    def _log_any(self, data: Mapping[str, Any], step: Any) -> None:
        try:
            if self._finished:
                self._warn_after_finish()
                return
            step = self._last_step = self._step(step)
            if self._timing.is_pending and self._steps_per_log:
                self._append_phases(step)
            if data is NO_DATA:
                self._diagnostics.report(Diagnostic("not_a_dict", "", "log() was given nothing; log {'name': value}"))
                return
            if not isinstance(data, Mapping):
                message = f"log() takes a dict, not a {type(data).__name__}; log {{'name': value}}"
                self._diagnostics.report(Diagnostic("not_a_dict", type(data).__name__, message))
                return
            self._note_step(step)
            numbers, on_device = self._sorter.sort(data, step)
            if numbers:
                if not isfinite(sum(numbers.values())):
                    self._diagnostics.report_nonfinite(numbers, step)
                self._append_values(EventKind.METRICS, step, numbers)
            if on_device and self._ensure_recording():
                self._devices.log_scalars(sys.modules["torch"], step, on_device)
            elif on_device:
                self._logged.note_unread(on_device)
        except Exception as error:
            self._diagnostics.report_internal_error("log", error)

    def _log_after_error(self, error: BaseException, data: Any, step: Any) -> None:
        """Log what C code failed to read, unless a signal handler raised the error."""
        if not isinstance(error, Exception) or is_interrupt(error, sys._getframe(1)):
            raise error
        self._log_any(data, step)

    def _append_phases_of_step(self, step: int) -> bool:
        """Append the phases that `step()` ends, and report an error. Return True if they were appended."""
        try:
            self._append_phases(step)
        except Exception as error:
            self._diagnostics.report_internal_error("step", error)
            return False
        return True

    def _log_media(self, step: int, key: str, value: Media) -> None:
        """Store contents and emit their events. `Run` knows where to."""
        raise NotImplementedError

    def _ensure_recording(self) -> bool:
        """Return True if events are recorded: a disabled run touches no device. Opens an inherited run.

        The sender thread appends a value on a device later, so the run must have one.
        """
        self._follow_fork()
        if isinstance(self._journal, LazyJournal):
            self._journal.open()
        return not isinstance(self._journal, NullJournal)

    def _append_resolved(self, step: int, ts: int, numbers: Mapping[str, float]) -> None:
        numbers = {key: value for key, value in numbers.items() if self._keys.register(key)}
        if not numbers:
            return
        if not isfinite(sum(numbers.values())):
            self._diagnostics.report_nonfinite(numbers, step)
        self._append_values(EventKind.METRICS, step, numbers, ts)

    def _log_at(self, step: int, ts: int, numbers: Mapping[str, float]) -> None:
        """Log numbers of another time than now, in microseconds since the epoch."""
        if self._finished:
            self._warn_after_finish()
            return
        self._follow_fork()
        self._note_step(step)
        self._last_step = step
        self._append_resolved(step, ts, numbers)

    def _note_unreadable(self, error: Exception) -> None:
        message = f"values on a device could not be read: {error_text(error)}; they are declared lost"
        self._diagnostics.report(Diagnostic("device_values_dropped", "unreadable", message))

    def _warn_after_finish(self, call: str = "log()") -> None:
        self._diagnostics.counts["after_finish"] += 1
        message = f"{call} after finish() of {self.id} is not recorded; call init() again"
        self._diagnostics.warn_once(("finished", call), message)

    def _is_finished_warn(self, call: str) -> bool:
        """Return True if the run has finished, and warn that the call is too late."""
        self._follow_fork()
        if self._finished:
            self._warn_after_finish(call)
        return self._finished

    def _append_values(self, kind: EventKind, step: int, numbers: Mapping[str, float], ts: int | None = None) -> None:
        ts = ts or time_ns() // 1000
        keys = tuple(numbers)
        known = self._key_sets.get(keys)
        if known is not None:
            self._note_values(kind, numbers)
            self._journal.append(self._pack((int(kind), ts, step, known[0], known[1](*numbers.values()))))
            return
        shape = pack(list(keys)), struct.Struct(f"<{len(keys)}d").pack
        payload = self._pack((int(kind), ts, step, shape[0], shape[1](*numbers.values())))
        if len(payload) <= self._bounds.event_bytes_max:  # safeguard: large-call-split
            # The fast path does not check sizes: only shapes that fit with any step are cached.
            fits_always = len(payload) + _INT_BYTES_MAX <= self._bounds.event_bytes_max
            if fits_always and not self._finished:
                if len(self._key_sets) >= _SHAPES_MAX or self._shape_keys + len(keys) > _SHAPE_KEYS_MAX:
                    self._forget_key_sets()
                is_numbered = not isinstance(self._journal, NullJournal)
                self._key_sets[keys] = (*shape, *self._logged.begin_set(keys, is_numbered=is_numbered))
                self._shape_keys += len(keys)
            self._note_values(kind, numbers)
            # Last: no call follows, so an exception of a signal handler in this function comes before the append.
            self._journal.append(payload)
        elif len(numbers) > 1:  # thousands of long keys in one call: split into two events
            items = list(numbers.items())
            for half in (items[: len(items) // 2], items[len(items) // 2 :]):
                self._append_values(kind, step, dict(half), ts)

    def _forget_key_sets(self) -> None:
        self._key_sets.clear()
        self._logged.forget_sets(getattr(self, "_last_metrics_tally", None))
        self._shape_keys = 0

    def _note_values(self, kind: EventKind, numbers: Mapping[str, float]) -> None:
        if kind is EventKind.METRICS:
            self._logged.note((self._journal.next_seq, tuple(numbers), tuple(numbers.values())))

    @never_raises("summary")
    def _await_devices(self) -> None:
        """Wait briefly for values on a device that were logged before: the summary is asked for them."""
        deadline = monotonic() + _SUMMARY_WAIT_S
        while self._deferred.pending and monotonic() < deadline:
            self._deferred.poll()
            if self._deferred.pending:
                sleep(_POLL_INTERVAL_S)

    def _step(self, step: Any) -> int:
        parsed = parse_step(step, self._diagnostics.report)
        return self._next_step if parsed is None else parsed

    def _note_step(self, step: int) -> None:
        """Continue the count after a logged step, as `log()` does inline."""
        if step > self._top_step:
            self._top_step = step
            self._next_step = step + self._steps_per_log if step < STEP_MAX else self._stay_at_last_step()
        elif not self._steps_per_log:
            self._next_step = step

    def _stay_at_last_step(self) -> int:
        """Return the largest possible step, where the count stays, and warn once."""
        message = f"step {STEP_MAX} is the last one: log() without step= stays there; pass smaller steps"
        self._diagnostics.report(Diagnostic("last_step", "", message))
        return STEP_MAX

    def _count_from(self, step: int) -> None:
        """Make `step` the next one for `log()` without a step, unless the count is higher."""
        if step > self._next_step:
            self._next_step, self._top_step = step, max(step - 1, NO_STEP)
            self._starting_step = step

    @property
    def _count_to_keep(self) -> int:
        """The step from which a later attempt of this label continues."""
        return max(self._top_step + 1, 0)

    # -- phases and steps --

    def _new_phase(self, key: str, on_host: bool) -> Phase:
        size = len(key.encode())
        if not 0 < size <= KEY_BYTES_MAX:
            message = f"phase {key!r:.60} has {size} bytes, the limit is {KEY_BYTES_MAX}; give it a shorter name"
            if not key:
                message = "a phase has no name, and is not recorded; give the phase a name"
            self._diagnostics.report(Diagnostic("phase_length", key[:60], message))
        elif self._keys.register(key):
            phase = Phase(self._timing, key, on_host)
            return phase if on_host else self._phases.setdefault(key, phase)
        return Phase(Timing(), key)  # its time is discarded

    @dynamo_disable
    @ignore_unknown_arguments
    def data(self, loader: Iterable[Any]) -> TimedLoader:
        """Return the loader with its waiting timed as the phase `data`.

        Args:
            loader: Any iterable, such as a DataLoader.

        Returns:
            An iterable of the same batches. Each wait for the next one counts for the step that the batch is of.

        Examples:
            >>> for batch in run.data(loader):
            ...     train(batch)
        """
        return TimedLoader(loader, self._steps)

    @ignore_unknown_arguments
    @never_raises("watch")
    def watch(self, model: Any, every: int = 100, name: str = "watch") -> None:
        """Log the norms of a model's gradients and parameters at some steps of its optimizer.

        The metrics are `<name>/grad_norm` and `<name>/param_norm` of the model, and of at most 32 submodules with
        their name after a slash. They belong to the next `log()` or `step()`. Gradients are clipped and unscaled, as
        the optimizer takes them. Of sharded parameters it is the norm of this rank's part. Nothing waits for a device.

        Args:
            model: A torch.nn.Module.
            every: Number of optimizer steps between two measurements.
            name: First part of the metrics' names.

        Examples:
            >>> run.watch(model, every=100)
        """
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(model, torch.nn.Module) or int(every) < 1:
            given = f"{short_repr(model)} and {short_repr(every)}"
            message = f"watch() takes a torch.nn.Module and a number of steps, not {given}"
            self._diagnostics.report(Diagnostic("not_a_model", type(model).__name__, message))
        elif not self._finished and self._ensure_recording():
            self._watches = [watch for watch in self._watches if not watch.is_stopped]
            if len(self._watches) >= _WATCHES_MAX:
                return
            report_fault = self._diagnostics.report
            self._watches.append(Watch(torch, model, int(every), clean_utf8(str(name)), self._attach, report_fault))

    def _attach(self, tensors: Sequence[Any], make: Callable[[list[float]], Mapping[str, float]]) -> None:
        """Log the numbers of tensors with the next step: at once on the host, else once they are copied."""

        def send(step: int) -> None:
            if tensors[0].device.type in BACKENDS:
                self._devices.submit(sys.modules["torch"], step, tensors, make)
            else:
                numbers = [number for tensor in tensors for number in tensor.reshape(-1).tolist()]
                self._append_resolved(step, time_ns() // 1000, make(numbers))

        if len(self._per_step_callbacks) < _WATCHES_MAX:
            self._per_step_callbacks.append(send)
            self._timing.is_pending = True

    def _enter_step(self) -> None:
        if self._steps.enter():
            self._next_step, self._top_step = self._former_next_step, self._former_top_step
            self._last_step = self._next_step
            _, phases = self._first_step_phases.pop() if self._first_step_phases else (0, {})
            for name, seconds in phases.items():
                self._timing.add(name, seconds)
        elif self._last_step == self._ended_step:  # logged again after its block
            self._last_step = min(self._last_step + 1, STEP_MAX)

    def _end_step(self) -> None:
        try:
            if self._finished:
                self._warn_after_finish("step()")
                return
            self._former_next_step, self._former_top_step = self._next_step, self._top_step
            step = self._last_step
            if self._steps_per_log:
                self._steps_per_log = 0
                for name in (DATA, STEP, GC):
                    self._keys.register(name)
                self._first_step_phases.append((step, self._timing.take_totals()))
                if self._timing.device is not None:
                    self._timing.device.submit(step)
                self._steps.end()
            else:
                self._steps.end()
                self._append_phases(step)
                if self._steps.is_entered:  # a plain step() usually ends in C, which does not note it
                    self._ended_step = step
            self._top_step = max(self._top_step, step)
            self._next_step = min(self._top_step + 1, STEP_MAX)
            self._last_step = min(step + 1, STEP_MAX)
        except Exception as error:
            self._diagnostics.report_internal_error("step", error)

    def _append_phases(self, step: int) -> None:
        timing = self._timing
        timing.is_pending = False
        phases: Mapping[str, float] = {}
        try:
            if self._first_step_phases:
                self._append_held()
            phases = timing.take_totals()
            if phases:
                self._append_values(EventKind.PHASES, step, phases)
                phases = {}
            if timing.device is not None:
                timing.device.submit(step)
            while self._per_step_callbacks:
                self._per_step_callbacks.pop(0)(step)
        except BaseException:  # raised by a signal handler: the rest belongs to the next step
            timing.is_pending = True
            timing.add_all(phases)
            raise

    def _append_held(self) -> None:
        held: tuple[int, dict[str, float]] | None = None
        try:
            held = self._first_step_phases.pop() if self._first_step_phases else None
            if held is not None and held[1]:
                self._append_values(EventKind.PHASES, *held)
        except BaseException as error:
            if held is not None:
                self._first_step_phases.append(held)
            elif isinstance(error, IndexError) and not is_interrupt(error):
                return  # another thread appends it
            raise

    def _append_last_phases(self) -> None:
        """Append pending phases at the end of the run, after what the sender thread may be appending."""
        deadline = monotonic() + _POLL_WAIT_S
        while self._is_polling and monotonic() < deadline:
            sleep(_POLL_INTERVAL_S)
        self._append_phases(self._last_step)

    def _poll_open_step(self) -> None:
        """Append the finished phases of an open step, and report a phase that hangs. The sender thread calls this.

        Otherwise a step that hangs would show nothing, and a kill would lose the phases that ended before.
        """
        self._is_polling = True  # before the check below: finish() sets `_finished` first, and then checks this
        try:
            if self._finished:
                return
            totals = self._timing.totals  # before the time: totals of a later step then belong to a young step
            now = perf_counter()
            if not self._steps_per_log and self._steps.should_flush(now):
                self._append_partial_phases(totals)  # safeguard: long-step-survives-kill
            self._stalls.poll(now, None if self._steps_per_log else self._last_step)
        finally:
            self._is_polling = False

    def _append_partial_phases(self, totals: dict[str, float]) -> None:
        step, timing = self._last_step, self._timing
        self._append_held()
        if phases := timing.take_partial(totals):
            self._append_values(EventKind.PHASES, step, phases)
        if timing.device is not None and timing.totals is totals:
            timing.device.submit(step)

    def _append_times(self, step: int, ts: int, seconds: Mapping[str, float]) -> None:
        self._append_values(EventKind.PHASES, step, seconds, ts)

    # -- events --

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self._diagnostics.report_internal_error(where, error)

    def _emit(self, kind: EventKind, *fields: Any, urgent: bool = False) -> None:
        if PAGE[0] != self._process:
            self._follow_fork()
        payload = encode(kind, time_ns() // 1000, *fields)
        if len(payload) <= (limit := self._bounds.event_bytes_max):
            self._journal.append(payload, urgent=urgent)
        else:
            message = f"{kind.name.lower()} of {len(payload)} bytes exceeds the limit of {limit}; split it"
            self._diagnostics.report(Diagnostic("event_too_large", kind.name.lower(), message))
