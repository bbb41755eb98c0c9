"""Journals that are none: of a run that is disabled or finished, and of one that a forked child inherited."""

from collections.abc import Callable
from typing import Protocol


class Appendable(Protocol):
    """What a run needs of its journal."""

    @property
    def next_seq(self) -> int:
        """How many seqs were given out."""
        ...

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Take an event."""
        ...


class Nowhere:
    """The journal of a disabled run, and of one that is finished: then `on_refused` hears of each event."""

    def __init__(self, next_seq: int = 0, on_refused: Callable[[], None] = lambda: None) -> None:
        self.next_seq = next_seq
        self._on_refused = on_refused

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Take nothing."""
        self._on_refused()


class AfterFork:
    """The journal of a run that a forked child inherited, until the child says something."""

    next_seq = 0

    def __init__(self, open_own: Callable[[], Appendable]) -> None:
        self._open_own = open_own

    def open(self) -> None:
        """Open the child's own journal."""
        self._open_own()

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Open the child's own journal, unless all there is to say is the end."""
        if not urgent:
            self._open_own().append(payload)
