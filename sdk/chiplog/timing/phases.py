"""Collect the time spent in phases until the next `log()` or `step()` assigns it to a step."""

import functools
import inspect
from collections.abc import Callable, Mapping
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, Self

from chiplog.native.loader import hot_path
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.dynamo import dynamo_disable
from chiplog_schemas.interrupts import unless_interrupt

DATA, STEP, GC = "data", "step", "gc"  # phases that are always recorded; the view `data_wait` uses the first two

# An open phase of a thread: its start on the host, the device's mark, and how often it was entered again inside; of a
# phase that C opened, the start alone.
Opened = list[Any] | float


class DeviceTimer(Protocol):
    """Times phases on a device."""

    def begin(self) -> Any:
        """Record a mark in the current stream and return it; None if the host must time this phase."""
        ...

    def end(self, name: str, mark: Any) -> bool:
        """Record the span from that mark to now. Return False if the host must time this phase."""
        ...

    def submit(self, step: int) -> None:
        """Assign the recorded spans to a step."""
        ...


if TYPE_CHECKING or hot_path is None:

    class TimingFields:
        """The fields of `Timing` that C reads, if the extension is built."""

else:
    TimingFields = hot_path.Timing


class Timing(TimingFields):
    """The pending phases of one run, in seconds by name. Of nested phases with the same name the outermost counts.

    device: the timer on a device, once there is one.
    """

    def __init__(self, report_fault: Callable[[Diagnostic], None] = lambda bad: None) -> None:
        self.totals: dict[str, float] = {}
        # Parts of totals that were emitted before the step ended, by number: take_totals() subtracts the last one.
        self._partial: dict[int, dict[str, float]] = {}
        self._n_reported = 0
        self._reported_last: tuple[dict[str, float], dict[str, float]] = ({}, {})  # totals, and their emitted part
        self.is_pending = False  # phases or callbacks wait for a step
        self.device: DeviceTimer | None = None
        self.report_fault = report_fault
        self.open_by_thread: dict[str, dict[int, Opened]] = {}  # by name, then thread

    def begin(self) -> Any:
        """Return the device's mark; None if the host must time the phase."""
        try:
            return None if self.device is None else self.device.begin()
        except unless_interrupt(Exception) as error:  # from the device, which reports it to the training too
            self._fails(error)
            return None

    def end_on_device(self, name: str, mark: Any) -> bool:
        """Record the span since its mark on the device. Return False if the host must time this phase."""
        try:
            noted = self.device is not None and self.device.end(name, mark)
        except unless_interrupt(Exception) as error:  # likewise
            self._fails(error)
            return False
        self.is_pending = self.is_pending or noted
        return noted

    def _fails(self, error: Exception) -> None:
        message = f"phases are timed by the host: {type(error).__name__} {str(error)[:200]}"
        self.report_fault(Diagnostic("device_timing_failed", "", message))

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to a phase. Makes no call, so no other thread and no signal handler runs in between."""
        totals = self.totals
        if name in totals:
            totals[name] += seconds
        else:
            totals[name] = seconds
        self.is_pending = True

    def add_all(self, totals: Mapping[str, float]) -> None:
        """Add the seconds of several phases that were taken but not appended."""
        for name, seconds in totals.items():
            self.add(name, seconds)

    def forget(self) -> object:
        """Reset in a forked child: the open phases are the parent's. Returns what no child may destroy: its marks."""
        marks = self.device, [list(opened.values()) for opened in self.open_by_thread.values()]
        self.totals = {}
        self._partial = {}
        self.is_pending = False
        self.device = None
        for opened in self.open_by_thread.values():
            opened.clear()
        return marks

    def take_totals(self) -> dict[str, float]:
        """Return the seconds by name, and reset them."""
        totals, self.totals = self.totals, {}
        return self._minus_partial(totals) if self._partial else totals  # safeguard: partial-phase-counts-once

    def _minus_partial(self, totals: dict[str, float]) -> dict[str, float]:
        last, reported = 0, dict[str, float]()
        while self._partial:
            try:
                number, so_far = self._partial.popitem()
            except unless_interrupt(KeyError):  # the sender thread has withdrawn it
                break
            last, reported = (number, so_far) if number > last else (last, reported)
        left = {name: seconds - reported.get(name, 0.0) for name, seconds in totals.items()}
        return {name: seconds for name, seconds in left.items() if seconds > 0}

    def take_partial(self, totals: dict[str, float]) -> dict[str, float]:
        """Return what was added to these totals since the last call; nothing if they were taken. For one thread.

        No lock is used, because the training must not wait. The caller's part is recorded first; then the code checks
        whether the training has taken the totals. Either the training finds the record, or the record is withdrawn.
        """
        so_far = totals.copy()
        of, reported = self._reported_last
        before = reported if of is totals else {}
        new = {name: seconds - before.get(name, 0.0) for name, seconds in so_far.items()}
        new = {name: seconds for name, seconds in new.items() if seconds > 0}
        if not new:
            return {}
        self._n_reported += 1
        noted = self._partial
        noted[self._n_reported] = so_far
        if self.totals is not totals and noted.pop(self._n_reported, None) is not None:
            return {}
        noted.pop(self._n_reported - 1, None)
        self._reported_last = totals, so_far
        return new


class PythonPhaseBlock:
    """Enter and exit a phase."""

    __slots__ = ("_name", "_on_host", "_opened", "_timing")

    _timing: Timing
    _name: str
    _on_host: bool
    _opened: dict[int, Opened]

    @dynamo_disable
    def __enter__(self) -> Self:
        thread, opened, timing = get_ident(), self._opened, self._timing
        entry = opened.get(thread)
        if isinstance(entry, float):
            opened[thread] = [entry, None, 1]
        elif entry is not None:
            entry[2] += 1
        else:
            mark = None if timing.device is None or self._on_host else timing.begin()
            opened[thread] = [perf_counter(), mark, 0]
        return self

    @dynamo_disable
    def __exit__(self, *error: object) -> None:
        thread, opened, timing = 0, self._opened, self._timing
        try:
            now, thread = perf_counter(), get_ident()
            entry = opened.get(thread)
            if entry is None:
                thread, entry = self._opened_elsewhere()
                if entry is None:
                    return  # not entered, or entered before a fork
            if isinstance(entry, float):
                entry = [entry, None, 0]
            began, mark, n_inside = entry
            if mark is None or not timing.end_on_device(self._name, mark):
                timing.add(self._name, now - began)  # safeguard: phase-monotonic-clock
            if n_inside:
                # It stays open for other tasks: overlapping tasks may keep it open over many steps.
                entry[:] = now, None if mark is None else timing.begin(), n_inside - 1
            else:
                opened.pop(thread, None)
        except BaseException:  # from a signal handler: the training has left the phase anyway
            opened.pop(thread or get_ident(), None)
            raise

    def _opened_elsewhere(self) -> tuple[int, Opened | None]:
        """Return the phase that another thread entered last, and the thread."""
        raise NotImplementedError


if TYPE_CHECKING or hot_path is None:
    PhaseBlock = PythonPhaseBlock
else:

    class PhaseBlock(hot_path.Phase):
        """Enter and exit a phase, in C where the host times a phase that is not open yet."""

        __slots__ = ()
        _enter_in_python = PythonPhaseBlock.__enter__
        _exit_in_python = PythonPhaseBlock.__exit__


class Phase(PhaseBlock):
    """A context manager and decorator that adds the time spent inside to its phase. It is reentrant.

    Open phases are kept by thread, so a run needs one object per name. Use few calls and objects: beside a training the
    caches are cold, and each one costs a microsecond.
    """

    __slots__ = ()

    def __init__(self, timing: Timing, name: str, on_host: bool = False) -> None:
        self._timing = timing
        self._name = name
        self._on_host = bool(on_host)
        self._opened = timing.open_by_thread.setdefault(name, {})

    def __copy__(self) -> Self:
        """Return the phase itself: the copy of a model that holds it times the same phase of the same run."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Return the phase itself."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: in another process, whose steps are not those of this run, it times nothing."""
        return _phase_of_no_run, (self._name,)

    def _opened_elsewhere(self) -> tuple[int, Opened | None]:
        """Return the phase that another thread entered last: a callback may exit what the training entered."""
        try:
            thread = next(reversed(self._opened), 0)
        except unless_interrupt(RuntimeError):  # another thread has just added one
            return 0, None
        return thread, self._opened.get(thread)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a timed function. Generators and coroutines cannot be timed: their calls return before they run."""
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            message = f"phase {self._name!r:.60} on a generator or coroutine times nothing; put `with` inside of it"
            self._timing.report_fault(Diagnostic("phase_of_generator", self._name, message))
            return function

        @dynamo_disable
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return timed


def _phase_of_no_run(name: str) -> Phase:
    return Phase(Timing(), name)
