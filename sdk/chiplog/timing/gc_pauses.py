"""Measure how long Python's garbage collector pauses this process."""

import contextlib
import gc
from collections import deque
from functools import partial
from operator import methodcaller
from time import perf_counter
from typing import Any

_STAMPS_MAX = 65_536  # collections between two reads: a step of minutes has thousands


class GcPauseTimer:
    """Add up the collector's pauses from `start` to `stop`.

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
