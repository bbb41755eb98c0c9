"""Time spent in the phases of a step, gathered until the next `log()` gives them a step."""

import time
from collections.abc import Callable
from contextlib import ContextDecorator


class Phase(ContextDecorator):
    """A context manager and decorator that adds the wall time spent inside to its phase. Seconds, monotonic clock."""

    def __init__(self, totals: Callable[[], dict[str, float]], name: str) -> None:
        self._totals = totals
        self._name = name
        self._entered: list[float] = []  # a stack: the same phase may be entered recursively

    def __enter__(self) -> "Phase":
        self._entered.append(time.perf_counter())
        return self

    def __exit__(self, *error: object) -> None:
        spent = time.perf_counter() - self._entered.pop()
        totals = self._totals()
        totals[self._name] = totals.get(self._name, 0.0) + spent
