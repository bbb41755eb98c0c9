"""The calls in a training's loop: `log()`, `phase()` and `step()`. In C for usual arguments, if the extension is built.

The Python functions take all arguments, and record the same bytes. They are the ones used without the extension, and
for what C does not handle: texts, nested dicts, values on a GPU, new keys, bad input, a run that has finished.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter, getdoc, signature
from math import hypot, isfinite
from time import time_ns
from typing import TYPE_CHECKING, Any

from chiplog.journal.event_sink import EventSink
from chiplog.native.loader import hot_path
from chiplog.safety.diagnostics import Diagnostics
from chiplog.safety.dynamo import dynamo_disable
from chiplog.safety.lenient_calls import NO_DATA, hide_unknown_arguments, unknown_argument_diagnostic
from chiplog.safety.process_number import PAGE
from chiplog.safety.text import clean_utf8
from chiplog.timing.phases import Phase, Timing
from chiplog.timing.steps import Step, Steps
from chiplog.values.logged_values import Put
from chiplog.values.metrics import FLOAT_TYPES
from chiplog_schemas.interrupts import unless_interrupt

STEP_MAX = 0x7FFFFFFFFFFFFFFF
NO_STEP = -(1 << 63)  # the smallest step


class PythonLoopCalls:
    """The three calls, and the state that they share with the rest of a run."""

    _journal: EventSink
    _timing: Timing
    _steps: Steps
    _diagnostics: Diagnostics
    _finished: bool
    _pack: Callable[[Any], bytes]
    # Tuples of keys seen before: their msgpack, what packs their values, what takes them for the summary, C's tally.
    _key_sets: dict[tuple[str, ...], tuple[bytes, Callable[..., bytes], Put, bytearray | None]]
    _phases: dict[str, Phase]
    # Phases that the first `step()` ended, held until it is clear that it does not begin a `with`.
    _first_step_phases: list[tuple[int, dict[str, float]]]  # at most one; a pop is atomic
    _per_step_callbacks: list[Callable[[int], None]]  # callbacks for the next step, beside phases
    _step_block: Step  # what step() returns
    _top_step: int  # the largest step that this label has logged, else NO_STEP
    _next_step: int  # for a `log()` without a step: the largest plus one, or the current one of `step()`
    _last_step: int
    _steps_per_log: int  # increment of `log()` without a step; 0 once `step()` counts
    _former_next_step: int  # before the last `step()`
    _former_top_step: int
    _process: int  # the number of the process whose run this is
    _step: Callable[[Any], int]  # returns the step that a script means
    _stay_at_last_step: Callable[[], int]
    _append_phases: Callable[[int], None]
    _new_phase: Callable[[str, bool], Phase]
    _end_step: Callable[[], None]

    @dynamo_disable
    @hide_unknown_arguments
    def log(self, data: Mapping[str, Any] = NO_DATA, step: int | None = None, *more: Any, **unknown: Any) -> None:
        """Log a dict of numbers, short texts, histograms and nested dicts of them. Never raises.

        Host values are durable when the call returns: they survive SIGKILL of the process. Values on a GPU are durable
        once they are copied; the call does not wait for that. NaN and infinities are kept.

        Arguments of other loggers are reported once and ignored. Without a dict, named values are logged as if in one.

        Usual calls run in C, if the C part of the SDK is built: `chiplog doctor` reports that.

        Args:
            data: Values by key: int, float, bool, str, `Histogram`, numpy scalars and arrays of one element, tensors
                of one element on any device, and nested dicts, whose keys are joined with `/`.
            step: int64, in any order. Default: one more than the largest step that this label has logged, also after a
                resume; 0 in the first call.

        Examples:
            >>> run.log({"train/loss": loss, "opt": {"lr": 3e-4}}, step=step)
        """
        try:
            if unknown or more or PAGE[0] != self._process:
                self._log_with_options(data, step, more, unknown)
                return
            # Use few calls and objects: beside a training caches are cold, and each one costs some microseconds.
            values = tuple(data.values())
            names = tuple(data)
            shape = self._key_sets.get(names)
            if shape is None or not FLOAT_TYPES.issuperset(map(type, values)):
                self._log_any(data, step)
                return
            numbers = tuple(map(float, values))  # before the count: reading a value may run another call
            if step is None:
                step = self._next_step
            elif type(step) is not int or not -0x8000000000000000 <= step <= 0x7FFFFFFFFFFFFFFF:
                step = self._step(step)
            # No call in between, so a smaller step cannot overwrite another thread's.
            if step > self._top_step:  # safeguard: step-after-largest
                self._top_step = step
                # safeguard: step-within-64-bits
                self._next_step = step + self._steps_per_log if step < STEP_MAX else self._stay_at_last_step()
            elif not self._steps_per_log:
                self._next_step = step
            self._last_step = step
            if self._timing.is_pending and self._steps_per_log:
                self._append_phases(step)
            if not isfinite(hypot(*numbers)):
                self._diagnostics.report_nonfinite(data, step)
            keys, pack_values, put, _ = shape
            payload = self._pack((1, time_ns() // 1000, step, keys, pack_values(*numbers)))
            put((self._journal.next_seq, names, numbers))
        except unless_interrupt(Exception):  # safeguard: interrupt-passes-log
            self._log_any(data, step)  # not a dict, or an int too large for float64: the slow path reports it
            return
        try:
            self._journal.append(payload)
        except Exception as error:
            self._diagnostics.report_internal_error("log", error)

    @dynamo_disable
    @hide_unknown_arguments
    def phase(self, name: str = "", on_host: bool = False, *more: Any, **unknown: Any) -> Phase:
        """Time a phase of the step: `with run.phase("forward"):`, or as a decorator.

        The seconds belong to the next `log()`; with `step()`, to the step that it ends. With CUDA in use they are the
        time between two events in the current stream, and nothing waits for them; otherwise they are wall time. Of
        nested phases each counts.

        Args:
            name: The name of the phase.
            on_host: True measures wall time also with CUDA in use.

        Returns:
            A context manager that is also a decorator.

        Examples:
            >>> with run.phase("forward"):
            ...     loss = model(batch)
        """
        if (more or unknown) and not self._finished:
            self._diagnostics.report(
                unknown_argument_diagnostic("phase", more, unknown, "is left out; it takes name, on_host")
            )
        try:
            phase = self._phases.get(name)
            if phase is None or on_host:
                return self._new_phase(clean_utf8(str(name)), on_host)
        except Exception as error:  # a name that cannot be hashed or converted to text
            self._diagnostics.report_internal_error("phase", error)
            return Phase(Timing(), "")
        return phase

    @dynamo_disable
    @hide_unknown_arguments
    def step(self, *more: Any, **unknown: Any) -> Step:
        """Mark the end of a step: `run.step()` after each step, or `with run.step():` around each, not both.

        Records the phase `step`: seconds from end to end, or of the block and the waiting for its data. From then on
        `log()` without a step logs to the current step, phases belong to it, and the phase `gc` has the seconds of the
        garbage collector. The step's number is the one that was logged last, else the label's own count.

        Returns:
            A context manager.

        Examples:
            >>> with run.step():
            ...     train(batch)
        """
        if (more or unknown) and not self._finished:
            self._diagnostics.report(
                unknown_argument_diagnostic("step", more, unknown, "is left out; log(…, step=…) takes a number")
            )
        if not self._steps.is_entered:
            self._end_step()
        return self._step_block

    def _log_with_options(
        self, data: Mapping[str, Any], step: Any, more: tuple[Any, ...], unknown: dict[str, Any]
    ) -> None:
        raise NotImplementedError

    def _log_any(self, data: Mapping[str, Any], step: Any) -> None:
        raise NotImplementedError


def _doc(call: Callable[..., Any]) -> str:
    """Return a docstring that begins with the signature, from which `help()` takes it for a C function."""
    shown = [str(parameter.replace(annotation=Parameter.empty)) for parameter in signature(call).parameters.values()]
    return f"{call.__name__}({', '.join(['$self', *shown[1:]])})\n--\n\n{getdoc(call)}"


if TYPE_CHECKING or hot_path is None:
    LoopCalls = PythonLoopCalls
else:
    hot_path.set_docs(_doc(PythonLoopCalls.log), _doc(PythonLoopCalls.phase), _doc(PythonLoopCalls.step))

    class LoopCalls(hot_path.LoopCalls):
        """The three calls in C, and the Python functions that they return to."""

        _log_in_python = PythonLoopCalls.log
        _phase_in_python = PythonLoopCalls.phase
        _step_in_python = PythonLoopCalls.step
