"""Phases of a framework that calls one hook where a phase begins and another where it ends: one is open at a time."""

from typing import Any

from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.timing.phases import Phase


class HookPhases:
    """The open phase of a framework's loop. Its seconds belong to the step whose `log()` or `step()` follows its end.

    A loop that skips the end of a phase, as after an exception, counts it until the next one begins. A pickle has none.
    """

    def __init__(self, run: FrameworkRun) -> None:
        self._run = run
        self._open: Phase | None = None

    def begin(self, name: str) -> None:
        """End the open phase, and begin another."""
        if self._open is not None:
            self._open.__exit__()
        self._open = self._run.open().phase(name)
        self._open.__enter__()

    def end(self) -> None:
        """End the open phase. Without one it does nothing."""
        if self._open is not None:
            self._open.__exit__()
            self._open = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_run": self._run, "_open": None}
