"""Time phases with CUDA events: two marks in the current stream, read once both have happened. Nothing blocks.

The span between them is the phase's time on the device: queued work counts when it runs, and a wait on the host that
does not delay the device counts nothing.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from chiplog.journal.deferred import DeferredEvents
from chiplog.torch.backends import new_event

MARKS_MAX = 4096  # events, two for each phase; beyond this bound on memory the host times
_LANE = "phases"


class Span:
    """One pass through a phase."""

    __slots__ = ("begin", "end", "name")

    def __init__(self, name: str, begin: Any, end: Any) -> None:
        self.name = name
        self.begin = begin
        self.end = end


class CudaTiming:
    """Time the phases of one run on the devices of torch.cuda."""

    def __init__(
        self, torch: Any, later: DeferredEvents, append: Callable[[int, int, Mapping[str, float]], None]
    ) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._deferred = later
        self._append = append
        self._free: dict[int, list[Any]] = {}  # by device: an event stays with the one that recorded it first
        self._n_made = 0
        self._spans: deque[Span] = deque()  # without a step yet; the sender thread may take them too

    def begin(self) -> Any:
        """Record a mark in the current stream and return it; None if the host must time the phase."""
        if self._cuda.is_current_stream_capturing():
            return None
        return self._mark(self._cuda.current_device())

    def end(self, name: str, mark: Any) -> bool:
        """Record the span from that mark to now. Return False if the host must time this phase."""
        device = self._cuda.current_device()
        is_other = self._cuda.is_current_stream_capturing() or device != mark[0]
        end = None if is_other else self._mark(device)
        if end is None:
            self._give_back(mark)
            return False
        self._spans.append(Span(name, mark, end))
        return True

    def submit(self, step: int) -> None:
        """Assign the spans since the last call to a step."""
        if self._spans:
            spans = self._take()
            self._deferred.add(_LANE, _Spans(self, step, spans))

    def _take(self) -> list[Span]:
        taken = []
        try:
            while self._spans:
                taken.append(self._spans.popleft())
        except IndexError:  # another thread took the last one
            pass
        return taken

    def resolve(self, step: int, ts: int, spans: list[Span]) -> None:
        """Add up the seconds of finished phases, and append them."""
        totals: dict[str, float] = {}
        for span in spans:
            seconds = span.begin[1].elapsed_time(span.end[1]) / 1e3  # in ms: cudaEventElapsedTime
            totals[span.name] = totals.get(span.name, 0.0) + seconds
        self._append(step, ts, totals)

    def release(self, spans: list[Span]) -> None:
        """Return the events to the pool."""
        for mark in chain.from_iterable((span.begin, span.end) for span in spans):
            self._give_back(mark)

    def _mark(self, device: int) -> tuple[int, Any] | None:
        free = self._free.setdefault(device, [])
        try:
            event = free.pop()
        except IndexError:
            if self._n_made >= MARKS_MAX:
                return None
            self._n_made += 1
            event = new_event(self._torch, with_timing=True)
        event.record()
        return device, event

    def _give_back(self, mark: tuple[Any, Any]) -> None:
        self._free[mark[0]].append(mark[1])


class _Spans:
    """All phases of one step: one event."""

    def __init__(self, timing: CudaTiming, step: int, spans: list[Span]) -> None:
        self._timing = timing
        self._step = step
        self._ts = time.time_ns() // 1000
        self._spans = spans

    def is_ready(self) -> bool:
        """Return True if every mark has happened."""
        return all(span.begin[1].query() and span.end[1].query() for span in self._spans)

    def append(self) -> None:
        """Read the times and append them."""
        self._timing.resolve(self._step, self._ts, self._spans)

    def release(self) -> None:
        """Return the events to the pool."""
        self._timing.release(self._spans)
