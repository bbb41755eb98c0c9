"""Time spent in the phases of a step, gathered until the next `log()` or `step()` gives them a step."""

import functools
import inspect
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any, Protocol

from chiplog.torch.compiling import untraced
from chiplog.values import Bad

DATA, STEP, GC = "data", "step", "gc"  # phases that are recorded unasked; the view `data_wait` goes by the first two

# What `begin` returns: whose phase, when it began on the host, and the device's mark. None: it is inside of itself.
Begun = tuple[tuple[int, str], float, Any] | None


class Stopwatch(Protocol):
    """What times a phase on a device."""

    def begin(self) -> Any:
        """Return a mark of now in the stream of work; None when the host is to time this phase."""
        ...

    def end(self, name: str, mark: Any) -> bool:
        """Note what lies between that mark and now. False: the host is to time this phase."""
        ...

    def send(self, step: int) -> None:
        """Give what was timed to a step."""
        ...


class Timing:
    """The phases of one run that wait for their step. Seconds by name; each name's outermost phase counts.

    device: what times on a device, once there is one.
    """

    def __init__(self, complain: Callable[[Bad], None] = lambda bad: None) -> None:
        self.totals: dict[str, float] = {}
        self.is_pending = False  # something waits for its step
        self.device: Stopwatch | None = None
        self.complain = complain
        self._open: set[tuple[int, str]] = set()

    def begin(self, name: str, on_host: bool = False) -> Begun:
        """Return what `end` needs."""
        key = (get_ident(), name)
        if key in self._open:
            return None
        self._open.add(key)
        device, mark = self.device, None
        if device is not None and not on_host:
            try:
                mark = device.begin()
            except Exception as error:  # of the device, which says so to the training too
                self._fails(error)
        return key, perf_counter(), mark

    def end(self, begun: Begun) -> None:
        """Add what was spent since."""
        if begun is None:
            return
        key, began, mark = begun
        self._open.discard(key)
        device, is_noted = self.device, False
        if mark is not None and device is not None:
            try:
                is_noted = device.end(key[1], mark)
            except Exception as error:  # likewise
                self._fails(error)
        if is_noted:
            self.is_pending = True
        else:
            self.add(key[1], perf_counter() - began)

    def _fails(self, error: Exception) -> None:
        message = f"phases are timed by the host: {type(error).__name__} {str(error)[:200]}"
        self.complain(Bad("device_timing_failed", "", message))

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to a phase."""
        totals = self.totals
        totals[name] = totals.get(name, 0.0) + seconds
        self.is_pending = True

    def forget(self) -> None:
        """Begin anew in a forked child: what was going on is the parent's."""
        self.totals = {}
        self.is_pending = False
        self.device = None
        self._open = set()

    def take(self) -> dict[str, float]:
        """Return the seconds by name, and begin anew."""
        totals, self.totals = self.totals, {}
        return totals


class Phase:
    """A context manager and decorator that adds the time spent inside to its phase. It may be entered again inside."""

    __slots__ = ("_begun", "_name", "_on_host", "_timing")

    def __init__(self, timing: Timing, name: str, on_host: bool = False) -> None:
        self._timing = timing
        self._name = name
        self._on_host = on_host
        self._begun: list[Begun] = []

    @untraced
    def __enter__(self) -> "Phase":
        self._begun.append(self._timing.begin(self._name, self._on_host))
        return self

    @untraced
    def __exit__(self, *error: object) -> None:
        if self._begun:
            self._timing.end(self._begun.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed. Not for generators and coroutines: their calls return before they run."""
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            message = f"phase {self._name!r:.60} on a generator or coroutine times nothing; put `with` inside of it"
            self._timing.complain(Bad("phase_of_generator", self._name, message))
            return function
        timing, name, on_host = self._timing, self._name, self._on_host

        @untraced
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            with Phase(timing, name, on_host):
                return function(*arguments, **named)

        return timed
