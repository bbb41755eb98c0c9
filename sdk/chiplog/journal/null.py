"""Journals that are none: of a run that is disabled or finished, and of one that a forked child inherited."""

import threading
from collections.abc import Callable
from typing import Protocol

_HELD_MAX = 1_000  # events of handlers that interrupt one opening


class EventSink(Protocol):
    """What a run needs of its journal."""

    @property
    def next_seq(self) -> int:
        """How many seqs were given out."""
        ...

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Take an event."""
        ...


class NullJournal:
    """The journal of a disabled run, and of one that is finished: then `on_refused` hears of each event."""

    def __init__(self, next_seq: int = 0, on_refused: Callable[[], None] = lambda: None) -> None:
        self.next_seq = next_seq
        self._on_refused = on_refused

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Take nothing."""
        self._on_refused()


class LazyJournal:
    """The journal of a run that a forked child inherited, until the child says something.

    Threads of the child may say their first words at once: one of them opens, the others wait for its journal.
    """

    next_seq = 0

    def __init__(self, open_own: Callable[[], EventSink]) -> None:
        self._open_own = open_own
        self._own: EventSink | None = None
        self._lock = threading.RLock()  # a signal handler may speak in the midst of opening
        self._is_opening = False
        self._held: list[bytes] = []  # what is said in the midst of opening, by a handler or by the opening itself

    def open(self) -> None:
        """Open the child's own journal, unless that was done."""
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
        """Open the child's own journal, unless all there is to say is the end."""
        with self._lock:
            if self._own is None and not urgent:
                self.open()
            if self._own is not None:
                self._own.append(payload, urgent=urgent)
            elif self._is_opening and len(self._held) < _HELD_MAX:
                self._held.append(payload)
