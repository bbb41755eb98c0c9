"""Substitutes for a journal: of a disabled or finished run, and of a run that a forked child inherited."""

import threading
from collections.abc import Callable
from typing import Protocol

_HELD_MAX = 1_000  # events of signal handlers that interrupt one opening


class EventSink(Protocol):
    """What a run needs from its journal."""

    @property
    def next_seq(self) -> int:
        """How many seqs were assigned."""
        ...

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Append an event."""
        ...


class NullJournal:
    """The journal of a disabled or finished run. A finished run calls `on_refused` for each event."""

    def __init__(self, next_seq: int = 0, on_refused: Callable[[], None] = lambda: None) -> None:
        self.next_seq = next_seq
        self._on_refused = on_refused

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Drop the event."""
        self._on_refused()


class LazyJournal:
    """The journal of a run that a forked child inherited, until the child emits an event.

    Threads of the child may emit their first events at once: one of them opens the journal, the others wait for it.
    """

    next_seq = 0

    def __init__(self, open_own: Callable[[], EventSink]) -> None:
        self._open_own = open_own
        self._own: EventSink | None = None
        self._lock = threading.RLock()  # a signal handler may emit an event during the opening
        self._is_opening = False
        self._held: list[bytes] = []  # events emitted during the opening, by a handler or by the opening itself

    def open(self) -> None:
        """Open the child's own journal, unless it is open."""
        with self._lock:
            if self._own is not None or self._is_opening:
                return
            self._is_opening = True
            try:
                self._own = self._open_own()
            finally:
                self._is_opening = False
            while self._held:
                self._own.append(self._held.pop(0))

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Append to the child's own journal. An urgent event, which only ends the run, does not open it."""
        with self._lock:
            if self._own is None and not urgent:
                self.open()
            if self._own is not None:
                self._own.append(payload, urgent=urgent)
            elif self._is_opening and len(self._held) < _HELD_MAX:
                self._held.append(payload)
