"""The step of `log()` without `step=`: one label's own count. The numbers are fields of the run, for C counts too."""

from collections.abc import Callable
from typing import Any

from chiplog.recording.log.given_step import parse_step
from chiplog.recording.log.loop_calls import NO_STEP, STEP_MAX, LoopCalls
from chiplog.safety.diagnostics import Diagnostic


class StepCount:
    """The count of one label. calls: its fields hold the numbers. report: called for a step that is not usable."""

    def __init__(self, calls: LoopCalls, report: Callable[[Diagnostic], None]) -> None:
        self._calls = calls
        self._report = report
        self.reset()

    def reset(self) -> None:
        """Count as a label that has logged nothing."""
        calls = self._calls
        calls._top_step = NO_STEP
        calls._next_step = 0
        calls._last_step = 0
        calls._steps_per_log = 1
        calls._former_next_step, calls._former_top_step = 0, NO_STEP
        self.starting_step = 0  # the first one of this attempt
        self._ended_step: int | None = None  # by the last `with run.step():`

    def continue_from(self, step: int) -> None:
        """Make `step` the next one for `log()` without a step, unless the count is higher."""
        calls = self._calls
        if step > calls._next_step:
            calls._next_step, calls._top_step = step, max(step - 1, NO_STEP)
            self.starting_step = step

    @property
    def to_keep(self) -> int:
        """The step from which a later attempt of this label continues."""
        return max(self._calls._top_step + 1, 0)

    def parse(self, step: Any) -> int:
        """Return the given step as an integer; or the label's own count if the given step is not usable."""
        parsed = parse_step(step, self._report)
        return self._calls._next_step if parsed is None else parsed

    def note(self, step: int) -> None:
        """Continue the count after a logged step, as `log()` does inline."""
        calls = self._calls
        if step > calls._top_step:
            calls._top_step = step
            calls._next_step = step + calls._steps_per_log if step < STEP_MAX else self.stay_at_last_step()
        elif not calls._steps_per_log:
            calls._next_step = step

    def stay_at_last_step(self) -> int:
        """Return the largest possible step, where the count stays, and warn once."""
        message = f"step {STEP_MAX} is the last one: log() without step= stays there; pass smaller steps"
        self._report(Diagnostic("last_step", "", message))
        return STEP_MAX

    def repeat(self) -> None:
        """Make the next call without a step log to the last one again: that was not committed."""
        calls = self._calls
        if calls._steps_per_log and calls._last_step == calls._top_step:
            calls._next_step, calls._top_step = calls._last_step, max(calls._last_step - 1, NO_STEP)

    # -- for step() --

    def note_former(self) -> None:
        """Note the count before a call of `step()`, which may begin a `with`."""
        calls = self._calls
        calls._former_next_step, calls._former_top_step = calls._next_step, calls._top_step

    def end_step(self, step: int, *, is_block: bool) -> None:
        """Count a step that has ended. is_block: a `with` did, so values logged after it belong to the next step."""
        calls = self._calls
        if is_block:
            self._ended_step = step
        calls._top_step = max(calls._top_step, step)
        calls._next_step = min(calls._top_step + 1, STEP_MAX)
        calls._last_step = min(step + 1, STEP_MAX)

    def begin_first_block(self) -> None:
        """Restore the count: the `step()` that returned the first block did not end a step."""
        calls = self._calls
        calls._next_step, calls._top_step = calls._former_next_step, calls._former_top_step
        calls._last_step = calls._next_step

    def begin_block(self) -> None:
        """Begin the step of a `with`."""
        calls = self._calls
        if calls._last_step == self._ended_step:  # logged again after its block
            calls._last_step = min(calls._last_step + 1, STEP_MAX)
