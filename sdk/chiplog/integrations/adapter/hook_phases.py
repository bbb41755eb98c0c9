"""Phases of a framework that calls one hook where a phase begins and another where it ends: one is open at a time."""

from collections.abc import Mapping
from typing import Any

from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.recording.run.run import Run
from chiplog.timing.phases import Phase


class HookPhases:
    """The open phase of a framework's loop. Its seconds belong to the step that is logged after its end. Never raises.

    A loop that skips the end of a phase, as after an exception, counts it until the next one begins. A pickle has none.

    The run is looked up once a step: beside a training caches are cold, and each call costs a microsecond.
    """

    def __init__(self, run: FrameworkRun) -> None:
        self._run = run
        self._of: Run | None = None  # whose phases these are
        self._named: dict[str, Phase] = {}
        self._open: Phase | None = None

    def begin(self, name: str) -> None:
        """End the open phase, and begin another."""
        try:
            if self._open is not None:
                self._open.__exit__()
            phase = self._named.get(name)
            if phase is None or self._of is None or self._of._finished:
                phase = self._named[name] = self._current().phase(name)
            self._open = phase
            phase.__enter__()
        except Exception as error:
            self._report_internal_error(name, error)

    def end(self) -> None:
        """End the open phase. Without one it does nothing."""
        try:
            if self._open is not None:
                self._open.__exit__()
                self._open = None
        except Exception as error:
            self._report_internal_error("phase", error)

    def log_step(self, row: Mapping[str, Any], step: int | None) -> None:
        """Log a row, and end the step: phases and row belong to it."""
        run = self._current()
        if row:
            run.log(row, step=step)
        run.step()

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self._run.open()._report_internal_error(where, error)

    def _current(self) -> Run:
        run = self._run.open()
        if run is not self._of:
            self._of, self._named = run, {}
        return run

    def __getstate__(self) -> dict[str, Any]:
        return {"_run": self._run, "_of": None, "_named": {}, "_open": None}
