"""The phases of steps as events: with the `log()` or `step()` that ends them, and of an open step from time to time."""

from collections.abc import Callable, Mapping
from time import monotonic, perf_counter, sleep

from chiplog.recording.log.logged_keys import LoggedKeys
from chiplog.recording.log.loop_calls import LoopCalls
from chiplog.recording.log.step_count import StepCount
from chiplog.recording.log.value_events import ValueEvents
from chiplog.safety.diagnostics import Diagnostic, Diagnostics
from chiplog.timing.phases import DATA, GC, STEP, Phase, Timing
from chiplog.timing.stall_detector import StallDetector
from chiplog.timing.steps import Step
from chiplog_schemas.interrupts import is_interrupt
from chiplog_schemas.limits import KEY_BYTES_MAX
from chiplog_schemas.model.events import EventKind

_CALLBACKS_MAX = 64  # of one step: one for each model that is watched
_POLL_WAIT_S = 0.05  # part of finish()'s one second: to wait while the sender thread flushes the open step
_POLL_INTERVAL_S = 0.001


class StepPhases:
    """Assign the phases of one run to its steps.

    calls: has the timing, the current step, and what waits for a step. warn_after_finish: called with the call's name.
    """

    def __init__(
        self,
        calls: LoopCalls,
        count: StepCount,
        values: ValueEvents,
        keys: LoggedKeys,
        stalls: StallDetector,
        diagnostics: Diagnostics,
        warn_after_finish: Callable[[str], None],
    ) -> None:
        self._calls = calls
        self._count = count
        self._values = values
        self._keys = keys
        self._stalls = stalls
        self._diagnostics = diagnostics
        self._warn_after_finish = warn_after_finish
        self._is_polling = False  # the sender thread polls the open step
        calls._phases = {}
        calls._first_step_phases = []
        calls._per_step_callbacks = []
        calls._step_block = Step(self.enter_step, self.end_step)

    def new_phase(self, key: str, on_host: bool) -> Phase:
        """Return the phase of a name that is new, or that the host must time."""
        timing = self._calls._timing
        size = len(key.encode())
        if not 0 < size <= KEY_BYTES_MAX:
            message = f"phase {key!r:.60} has {size} bytes, the limit is {KEY_BYTES_MAX}; give it a shorter name"
            if not key:
                message = "a phase has no name, and is not recorded; give the phase a name"
            self._diagnostics.report(Diagnostic("phase_length", key[:60], message))
        elif self._keys.register(key):
            phase = Phase(timing, key, on_host)
            return phase if on_host else self._calls._phases.setdefault(key, phase)
        return Phase(Timing(), key)  # its time is discarded

    def attach(self, callback: Callable[[int], None]) -> None:
        """Call this with the next step that ends."""
        if len(self._calls._per_step_callbacks) < _CALLBACKS_MAX:
            self._calls._per_step_callbacks.append(callback)
            self._calls._timing.is_pending = True

    def enter_step(self) -> None:
        """Begin the block of a `with run.step():`."""
        calls = self._calls
        if calls._steps.enter():
            self._count.begin_first_block()
            _, phases = calls._first_step_phases.pop() if calls._first_step_phases else (0, {})
            for name, seconds in phases.items():
                calls._timing.add(name, seconds)
        else:
            self._count.begin_block()

    def end_step(self) -> None:
        """End a step, at a call of `step()` or the end of its block. Never raises."""
        calls = self._calls
        try:
            if calls._finished:
                self._warn_after_finish("step()")
                return
            self._count.note_former()
            step = calls._last_step
            is_block = False
            if calls._steps_per_log:
                calls._steps_per_log = 0
                for name in (DATA, STEP, GC):
                    self._keys.register(name)
                calls._first_step_phases.append((step, calls._timing.take_totals()))
                if calls._timing.device is not None:
                    calls._timing.device.submit(step)
                calls._steps.end()
            else:
                calls._steps.end()
                self.append(step)
                is_block = calls._steps.is_entered  # a plain step() usually ends in C, which does not note it
            self._count.end_step(step, is_block=is_block)
        except Exception as error:
            self._diagnostics.report_internal_error("step", error)

    def append(self, step: int) -> None:
        """Append the pending phases to a step, and call what waits for one."""
        timing = self._calls._timing
        timing.is_pending = False
        phases: Mapping[str, float] = {}
        try:
            if self._calls._first_step_phases:
                self._append_held()
            phases = timing.take_totals()
            if phases:
                self._values.append(EventKind.PHASES, step, phases)
                phases = {}
            if timing.device is not None:
                timing.device.submit(step)
            while self._calls._per_step_callbacks:
                self._calls._per_step_callbacks.pop(0)(step)
        except BaseException:  # raised by a signal handler: the rest belongs to the next step
            timing.is_pending = True
            timing.add_all(phases)
            raise

    def append_of_step(self, step: int) -> bool:
        """Append the phases that `step()` ends, and report an error. Return True if they were appended."""
        try:
            self.append(step)
        except Exception as error:
            self._diagnostics.report_internal_error("step", error)
            return False
        return True

    def append_last(self) -> None:
        """Append pending phases at the end of the run, after what the sender thread may be appending."""
        deadline = monotonic() + _POLL_WAIT_S
        while self._is_polling and monotonic() < deadline:
            sleep(_POLL_INTERVAL_S)
        self.append(self._calls._last_step)

    def poll_open_step(self) -> None:
        """Append the finished phases of an open step, and report a phase that hangs. The sender thread calls this.

        Otherwise a step that hangs would show nothing, and a kill would lose the phases that ended before.
        """
        calls = self._calls
        self._is_polling = True  # before the check below: finish() sets `_finished` first, and then checks this
        try:
            if calls._finished:
                return
            totals = calls._timing.totals  # before the time: totals of a later step then belong to a young step
            now = perf_counter()
            if not calls._steps_per_log and calls._steps.should_flush(now):
                self._append_partial(totals)  # safeguard: long-step-survives-kill
            self._stalls.poll(now, None if calls._steps_per_log else calls._last_step)
        finally:
            self._is_polling = False

    def begin_in_child(self) -> None:
        """Forget what a forked child inherited: its steps are its own."""
        self._is_polling = False
        self._calls._per_step_callbacks = []
        self._calls._steps.stop()
        self._calls._first_step_phases.clear()

    def _append_held(self) -> None:
        held: tuple[int, dict[str, float]] | None = None
        first = self._calls._first_step_phases
        try:
            held = first.pop() if first else None
            if held is not None and held[1]:
                self._values.append(EventKind.PHASES, *held)
        except BaseException as error:
            if held is not None:
                first.append(held)
            elif isinstance(error, IndexError) and not is_interrupt(error):
                return  # another thread appends it
            raise

    def _append_partial(self, totals: dict[str, float]) -> None:
        step, timing = self._calls._last_step, self._calls._timing
        self._append_held()
        if phases := timing.take_partial(totals):
            self._values.append(EventKind.PHASES, step, phases)
        if timing.device is not None and timing.totals is totals:
            timing.device.submit(step)
