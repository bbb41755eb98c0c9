"""Report stalled phases: a row in `events` for each phase that is open for long, to show where a hang waits."""

import time
from collections.abc import Callable
from typing import Any

from chiplog.timing.phases import DATA, STEP, Timing
from chiplog.timing.steps import Steps
from chiplog_schemas.model.events import EventKind

STALL_AFTER_S = 2.0  # a phase that is open for longer is reported …
_TIMES_USUAL = 2.0  # … but only after twice its usual time: slow steps do not hang
_DECAY = 0.9  # per occurrence, of the usual time: after one long hang the next one is reported too
_POLL_INTERVAL_S = 1.0
_REPORTED_MAX = 8  # per poll: a hanging pool of threads is one hang

_Key = tuple[str, int]  # phase, thread; 0 for the phases of Steps
_WHOLE_STEP = (STEP, 0)


class StallDetector:
    """Report the phases of one run that are open for long, once each, with step and start. For one thread."""

    def __init__(self, timing: Timing, steps: Steps, emit: Callable[..., None]) -> None:
        self._timing = timing
        self._steps = steps
        self._append = emit
        self._next_poll_s = 0.0
        self._open: dict[_Key, tuple[float, float]] = {}  # at the last poll: start and duration
        self._reported: dict[_Key, float] = {}  # start of each reported phase
        self._typical_s: dict[str, float] = {}  # of phases that were open at a poll

    def poll(self, now: float, step: int | None) -> None:
        """Report stalled phases. now: of perf_counter(). step: the current step, if it is known."""
        if now < self._next_poll_s:
            return
        self._next_poll_s = now + _POLL_INTERVAL_S
        found = self._open_phases()
        for key, (began, took) in self._open.items():
            if found.get(key) != began:
                self._typical_s[key[0]] = max(took, self._typical_s.get(key[0], 0.0) * _DECAY)
        self._open = {key: (began, now - began) for key, began in found.items()}
        self._reported = {key: began for key, began in self._reported.items() if found.get(key) == began}
        step_began = found.get(_WHOLE_STEP, 0.0)  # a phase that began earlier encloses the whole loop
        is_in_phase = any(key != _WHOLE_STEP and began >= step_began for key, began in found.items())
        stalled = [key for key in found if self._is_stalled(key) and not (key == _WHOLE_STEP and is_in_phase)]
        for key in stalled[:_REPORTED_MAX]:
            self._reported[key] = found[key]
            self._emit(key[0], step, now - found[key])

    def _open_phases(self) -> dict[_Key, float]:
        """Return the start of each open phase. The training keeps running, so each dict is copied in one call."""
        found: dict[_Key, float] = {}
        for name, by_thread in list(self._timing.open_by_thread.items()):
            for thread, entry in list(by_thread.items()) if by_thread else ():
                found[name, thread] = entry if isinstance(entry, float) else entry[0]
        for name, began in ((DATA, self._steps.waiting_since), (STEP, self._steps.began)):
            if began:
                found[name, 0] = began
        return found

    def _is_stalled(self, key: _Key) -> bool:
        least = max(STALL_AFTER_S, _TIMES_USUAL * self._typical_s.get(key[0], 0.0))
        return key not in self._reported and self._open[key][1] >= least

    def _emit(self, name: str, step: int | None, took: float) -> None:
        since = time.time() - took
        clock = time.strftime("%H:%M:%S UTC", time.gmtime(since))
        if name == STEP:
            message = f"in no phase; step {step} is open since {clock}"
        else:
            message = f"in phase {name}{'' if step is None else f' of step {step}'} since {clock}"
        body: dict[str, Any] = {"phase": name, "step": step, "since_us": int(since * 1e6)}
        self._append(EventKind.NOTICE, "phase_open", "info", message, body)
