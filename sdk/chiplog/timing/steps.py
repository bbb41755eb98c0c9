"""Time whole steps, and the parts of each that wait for data or for Python's garbage collector."""

import contextlib
import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import methodcaller
from time import perf_counter
from typing import TYPE_CHECKING, Any

from chiplog.native.loader import hot_path
from chiplog.safety.dynamo import dynamo_disable
from chiplog.timing.phases import DATA, GC, STEP, Timing

_LONG_S = 1.0  # flush the finished phases of a step that is open for so long, and again at this interval
_STAMPS_MAX = 65_536  # collections between two reads: a step of minutes has thousands


if TYPE_CHECKING or hot_path is None:

    class StepsFields:
        """The fields of `Steps` that C reads, if the extension is built."""

else:
    StepsFields = hot_path.Steps


class Steps(StepsFields):
    """The steps of one run. A call after each step ends it, or a `with` block encloses it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._pauses = GcPauseTimer()
        self.began = 0.0  # start of the open step, by perf_counter(); 0 without one
        self.waiting_since = 0.0  # start of a wait for data, likewise
        self._long_at = 0.0
        self._waited = 0.0  # for data, since the last step ended
        self.is_entered = False  # `with run.step():`
        self.is_used = False

    def enter(self) -> bool:
        """Begin a step. Return True for the first: the call that returned its context manager did not end a step."""
        is_first, self.is_entered = not self.is_entered, True
        self.began = perf_counter() - self._waited  # a step begins with the wait for its data
        return is_first

    def end(self) -> None:
        """Record the duration of the step. Without a `with` block the first one has no start."""
        now = perf_counter()
        if not self.is_used:
            self.is_used = True
            self._pauses.start()
        if self.began:
            self._timing.add(STEP, now - self.began)
        if (paused := self._pauses.take()) > 0:
            self._timing.add(GC, paused)
        self.began = 0.0 if self.is_entered else now
        if self.is_entered:
            self._waited = 0.0

    def should_flush(self, now: float) -> bool:
        """Return True if the step has been open for a second or more, at most once a second."""
        if not self.began or now - max(self.began, self._long_at) < _LONG_S:
            return False
        self._long_at = now
        return True

    def add_wait(self, seconds: float) -> None:
        """Record time spent waiting for data."""
        self._waited += seconds
        self._timing.add(DATA, seconds)

    def stop(self) -> None:
        """Stop measuring. A forked child starts from this state."""
        self._pauses.stop()
        self.began = self.waiting_since = self._waited = 0.0
        self.is_entered = self.is_used = False


class Step:
    """The return value of `run.step()`: ignored, or used as a context manager."""

    __slots__ = ("_end", "_enter")

    def __init__(self, enter: Callable[[], None], end: Callable[[], None]) -> None:
        self._enter = enter
        self._end = end

    @dynamo_disable
    def __enter__(self) -> "Step":
        self._enter()
        return self

    @dynamo_disable
    def __exit__(self, *error: object) -> None:
        self._end()


class TimedLoader:
    """A data loader with its waits timed. Everything else is delegated to the loader."""

    def __init__(self, loader: Iterable[Any], steps: Steps) -> None:
        self._loader = loader
        self._steps = steps

    def __iter__(self) -> Iterator[Any]:
        steps = self._steps
        began = steps.waiting_since = perf_counter()
        try:
            batches = iter(self._loader)  # starts the workers and waits for them
        finally:
            steps.waiting_since = 0.0
        steps.add_wait(perf_counter() - began)
        return _TimedIterator(batches, steps)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises what the loader raises

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __copy__(self) -> "TimedLoader":
        return TimedLoader(self._loader, self._steps)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the loader alone: the steps of another process are not those of this run."""
        return _loader_itself, (self._loader,)


def _loader_itself(loader: Any) -> Any:
    return loader


class _TimedIterator:
    """Not a generator: that would keep a batch alive while the next one is built."""

    def __init__(self, batches: Iterator[Any], steps: Steps) -> None:
        self._batches = batches
        self._steps = steps

    def __iter__(self) -> "_TimedIterator":
        return self

    @dynamo_disable
    def __next__(self) -> Any:
        steps = self._steps
        began = steps.waiting_since = perf_counter()
        try:
            batch = next(self._batches)  # the wait for StopIteration belongs to no step
        finally:
            steps.waiting_since = 0.0
        steps.add_wait(perf_counter() - began)
        return batch


class PythonGcPauseTimer:
    """Add up the garbage collector's pauses from `start` to `stop`.

    The callback runs no Python code. After a signal during a collection, the next Python function that starts calls the
    handler. If that function were the callback, the collector would print and drop what the handler raises.
    """

    def __init__(self) -> None:
        self._began: deque[float] = deque(maxlen=_STAMPS_MAX)
        self._ended: deque[float] = deque(maxlen=_STAMPS_MAX)
        # getattr(moments, "start", info) is the property, which calls next(map(began.append, …)): all in C.
        self._on_gc: Any = partial(getattr, _Moments(self._began, self._ended))  # safeguard: gc-callback-without-python

    def start(self) -> None:
        """Start measuring."""
        gc.callbacks.append(self._on_gc)

    def stop(self) -> None:
        """Stop measuring."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._on_gc)

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds = 0.0
        while self._ended:
            ended = self._ended.popleft()
            began = ended  # if it began before `start`
            while self._began and self._began[0] <= ended:
                began = self._began.popleft()
            seconds += ended - began
        return seconds


class _Moments:
    """The start and end of a collection, as attributes: each access records the time."""

    start = property(methodcaller("_note_start"))
    stop = property(methodcaller("_note_stop"))

    def __init__(self, began: deque[float], ended: deque[float]) -> None:
        self._note_start = partial(next, map(began.append, iter(perf_counter, None)))
        self._note_stop = partial(next, map(ended.append, iter(perf_counter, None)))


if TYPE_CHECKING or hot_path is None:
    GcPauseTimer = PythonGcPauseTimer
else:

    class GcPauseTimer(hot_path.GcPauseTimer):
        """Add up the garbage collector's pauses from `start` to `stop`."""

        def start(self) -> None:
            """Start measuring."""
            gc.callbacks.append(self.note)

        def stop(self) -> None:
            """Stop measuring."""
            with contextlib.suppress(ValueError):
                gc.callbacks.remove(self.note)

        def take(self) -> float:
            """Return the seconds since the last call."""
            seconds, self.paused = self.paused, 0.0
            return seconds
