"""Whole steps: where each ends, what it took, and what of it was waiting for data."""

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

from chiplog.safety.dynamo import dynamo_disable
from chiplog.timing.gc_pauses import GcPauseTimer
from chiplog.timing.phases import DATA, GC, STEP, Timing

_LONG_S = 1.0  # of such a step is said what ended in it, and as often what ends later


class Steps:
    """The steps of one run. Each is ended by a call behind it, or entered and ended; then the call means nothing."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._pauses = GcPauseTimer()
        self.began: float | None = None  # of the step that goes on, on the clock of perf_counter()
        self.waiting_since: float | None = None  # for data, likewise
        self._long_at = 0.0
        self._waited = 0.0  # for data, since the last step ended
        self.is_entered = False  # `with run.step():`
        self.is_used = False

    def enter(self) -> bool:
        """Begin a step. True: the first; the call that made its context manager ended none."""
        is_first, self.is_entered = not self.is_entered, True
        self.began = perf_counter() - self._waited  # a step begins where it begins to wait for its data
        return is_first

    def end(self) -> None:
        """Note what the step took. The first one that is not entered has no beginning."""
        now = perf_counter()
        if not self.is_used:
            self.is_used = True
            self._pauses.start()
        if self.began is not None:
            self._timing.add(STEP, now - self.began)
        if (paused := self._pauses.take()) > 0:
            self._timing.add(GC, paused)
        self.began = None if self.is_entered else now
        if self.is_entered:
            self._waited = 0.0

    def should_flush(self, now: float) -> bool:
        """Tell whether the step goes on for a second or more, at most once a second."""
        if self.began is None or now - max(self.began, self._long_at) < _LONG_S:
            return False
        self._long_at = now
        return True

    def add_wait(self, seconds: float) -> None:
        """Note time spent waiting for data."""
        self._waited += seconds
        self._timing.add(DATA, seconds)

    def stop(self) -> None:
        """Look at nothing any more; a forked child begins anew."""
        self._pauses.stop()
        self.began, self._waited = None, 0.0
        self.waiting_since = None
        self.is_entered = self.is_used = False


class Step:
    """What `run.step()` returns: nothing to keep, or a context manager."""

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
    """A data loader whose waiting is timed. All else of it is the loader's own."""

    def __init__(self, loader: Iterable[Any], steps: Steps) -> None:
        self._loader = loader
        self._steps = steps

    def __iter__(self) -> Iterator[Any]:
        steps = self._steps
        began = steps.waiting_since = perf_counter()
        try:
            batches = iter(self._loader)  # starts the workers, and waits for them
        finally:
            steps.waiting_since = None
        steps.add_wait(perf_counter() - began)
        return _TimedIterator(batches, steps)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises what the loader's own raises

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _TimedIterator:
    """No generator: that would keep the batch alive while the next one is made."""

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
            batch = next(self._batches)  # the end of the data is no step's
        finally:
            steps.waiting_since = None
        steps.add_wait(perf_counter() - began)
        return batch
