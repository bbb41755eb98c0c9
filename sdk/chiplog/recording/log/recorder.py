"""What is behind `log()`, `phase()` and `step()`: values, steps and phases as events. Raises nothing."""

import sys
from collections.abc import Iterable, Mapping
from time import time_ns
from typing import Any

from chiplog.journal.event_sink import LazyJournal, NullJournal
from chiplog.recording.log.device_events import DeviceEvents
from chiplog.recording.log.logged_dict import DictSorter
from chiplog.recording.log.logged_keys import LoggedKeys
from chiplog.recording.log.loop_calls import LoopCalls
from chiplog.recording.log.model_watches import ModelWatches
from chiplog.recording.log.step_count import StepCount
from chiplog.recording.log.step_phases import StepPhases
from chiplog.recording.log.value_events import ValueEvents
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostic, Diagnostics
from chiplog.safety.dynamo import dynamo_disable
from chiplog.safety.lenient_calls import NO_DATA, ignore_unknown_arguments, split_unknown
from chiplog.safety.process_number import PAGE, process_number
from chiplog.timing.phases import Timing
from chiplog.timing.stall_detector import StallDetector
from chiplog.timing.steps import Steps, TimedLoader
from chiplog.values.logged_values import LoggedValues
from chiplog.values.metrics import Media
from chiplog_schemas.codec import packer
from chiplog_schemas.interrupts import is_interrupt
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.model.events import EventKind, encode


class Recorder(LoopCalls):
    """Append what training logs to a journal, as events. `Run` adds an identity and an end.

    It is a base class, not a member: one more call would cost a part of `log()`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process = process_number()
        self._journal = NullJournal()
        self._finished = False
        self._pack = packer().pack
        self._diagnostics = Diagnostics(self._emit)
        report = self._diagnostics.report
        self._logged = LoggedValues()
        self._keys = LoggedKeys(limits.keys_max, self._diagnostics.report_too_many_keys)
        self._sorter = DictSorter(self._keys, self._emit, self._log_media, report)
        self._timing = Timing(report)
        self._steps = Steps(self._timing)
        self._count = StepCount(self, report)
        self._values = ValueEvents(self, self._keys, self._logged, self._diagnostics, limits.event_bytes_max)
        stalls = StallDetector(self._timing, self._steps, self._emit)
        phases = StepPhases(
            self, self._count, self._values, self._keys, stalls, self._diagnostics, self._warn_after_finish
        )
        self._step_phases = phases
        self._devices = DeviceEvents(self, self._values, self._diagnostics)
        self._watches = ModelWatches(
            self._devices, phases, lambda: not self._finished and self._ensure_recording(), report
        )
        # The loop's calls find these here, without a call in between.
        self._step, self._stay_at_last_step = self._count.parse, self._count.stay_at_last_step
        self._new_phase, self._end_step = phases.new_phase, phases.end_step
        self._append_phases, self._append_phases_of_step = phases.append, phases.append_of_step

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
        if stays and data is not NO_DATA:
            self._count.repeat()

    def _log_any(self, data: Mapping[str, Any], step: Any) -> None:
        try:
            if self._finished:
                self._warn_after_finish()
                return
            step = self._last_step = self._count.parse(step)
            if self._timing.is_pending and self._steps_per_log:
                self._append_phases(step)
            if data is NO_DATA:
                self._diagnostics.report(Diagnostic("not_a_dict", "", "log() was given nothing; log {'name': value}"))
                return
            if not isinstance(data, Mapping):
                message = f"log() takes a dict, not a {type(data).__name__}; log {{'name': value}}"
                self._diagnostics.report(Diagnostic("not_a_dict", type(data).__name__, message))
                return
            self._count.note(step)
            numbers, on_device = self._sorter.sort(data, step)
            self._values.append_metrics(step, numbers)
            if on_device and self._ensure_recording():
                self._devices.log(step, on_device)
            elif on_device:
                self._logged.note_unread(on_device)
        except Exception as error:
            self._diagnostics.report_internal_error("log", error)

    def _log_after_error(self, error: BaseException, data: Any, step: Any) -> None:
        """Log what C code failed to read, unless a signal handler raised the error."""
        if not isinstance(error, Exception) or is_interrupt(error, sys._getframe(1)):
            raise error
        self._log_any(data, step)

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

    def _log_at(self, step: int, ts: int, numbers: Mapping[str, float]) -> None:
        """Log numbers of another time than now, in microseconds since the epoch."""
        if self._is_finished_warn("log()"):
            return
        self._count.note(step)
        self._last_step = step
        self._values.append_resolved(step, ts, numbers)

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

    # -- phases and steps --

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
        self._watches.add(model, every, name)

    # -- events --

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self._diagnostics.report_internal_error(where, error)

    def _emit(self, kind: EventKind, *fields: Any, urgent: bool = False) -> None:
        if PAGE[0] != self._process:
            self._follow_fork()
        payload = encode(kind, time_ns() // 1000, *fields)
        if len(payload) <= (limit := self._limits.event_bytes_max):
            self._journal.append(payload, urgent=urgent)
        else:
            message = f"{kind.name.lower()} of {len(payload)} bytes exceeds the limit of {limit}; split it"
            self._diagnostics.report(Diagnostic("event_too_large", kind.name.lower(), message))
