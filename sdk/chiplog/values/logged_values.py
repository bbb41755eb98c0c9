"""What this process has logged, by key: the values that `run.summary` shows.

`log()` in C adds each event to the tally of its set of keys, a bytearray of float64:

    n, number of the first event, of the last one | of each key: last | min | max | sum | first

Events that Python appends are added up in batches. Without C that are all events, and it would take a third of the time
of `log()`. There only the last event of a set is kept, until `define_metric` or a caller asks for all values.
"""

import math
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from threading import RLock
from typing import Any, NamedTuple

from chiplog.native.loader import hot_path
from chiplog_schemas.interrupts import unless_interrupt

_COUNTS, _COLUMNS = 3, 5
_DOUBLE = 8
_WAIT_S = 1.0  # for another thread, which needs less than a millisecond
_BATCH = 256  # calls between two additions
_OF_ALL = ("min", "max", "mean")  # summaries that need all values


Event = tuple[int, tuple[str, ...], tuple[float, ...]]  # its number among the events, keys, values
Put = Callable[[Event], None]


class Tally(NamedTuple):
    """All values of one key. NaN is left out of n, min, max and sum; numbers are those of the first and last event."""

    n_all: int
    n: int
    first_number: float
    last_number: float
    last: float
    min: float
    max: float
    sum: float
    first: float

    def plus(self, other: "Tally") -> "Tally":
        """Return the tally of both. Of equal numbers the other one's is the later event."""
        early = other if other.first_number < self.first_number else self
        late = other if other.last_number >= self.last_number else self
        return Tally(
            self.n_all + other.n_all,
            self.n + other.n,
            early.first_number,
            late.last_number,
            late.last,
            min(self.min, other.min),
            max(self.max, other.max),
            self.sum + other.sum,
            early.first,
        )

    def summarize(self, kind: str) -> float:
        """Return the value of a summary by the word that `define_metric` takes, as the view `summary` has it."""
        if kind in ("min", "max", "mean") and not self.n:
            return math.nan
        return {"min": self.min, "max": self.max, "mean": self.sum / max(self.n, 1), "first": self.first}.get(
            kind, self.last
        )


class LoggedValues:
    """The tallies of one run in one process."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}
        self._sets: dict[tuple[str, ...], bytearray | deque[Event]] = {}
        self._places: dict[str, list[tuple[tuple[str, ...], int]]] = {}  # of a key, in the sets
        self._pending: deque[Event] = deque()
        self._unread: dict[str, Any] = {}
        self._kind_of: Callable[[str], str] = lambda key: "last"
        self._keeps_all = False
        self._lock = RLock()  # a signal handler may read the summary while its thread is in here

    def begin_set(self, keys: tuple[str, ...], *, is_numbered: bool) -> tuple[Put, bytearray | None]:
        """Return what takes the events of a set of keys, and the tally to which C adds them.

        is_numbered: events have a number, by which the last one of several sets is known.
        """
        values = self._sets.get(keys)
        if values is None:
            is_last_enough = hot_path is None and is_numbered and not self._needs_all(keys)
            values = deque(maxlen=1) if is_last_enough else bytearray((_COUNTS + _COLUMNS * len(keys)) * _DOUBLE)
            self._sets[keys] = values
            for place, key in enumerate(keys):
                self._places.setdefault(key, []).append((keys, place))
        return (self.note, values) if isinstance(values, bytearray) else (values.append, None)

    def define(self, kind_of: Callable[[str], str]) -> bool:
        """Note that the summaries of keys have changed. Return True if the sets have to begin again.

        kind_of: returns the word of `define_metric` for a key.
        """
        self._kind_of = kind_of
        return self._lacks_values()

    def keep_all(self) -> bool:
        """Keep all values of all keys, for tallies. Return True if the sets have to begin again."""
        self._keeps_all = True
        return self._lacks_values()

    def _lacks_values(self) -> bool:
        return any(isinstance(values, deque) and self._needs_all(keys) for keys, values in list(self._sets.items()))

    def _needs_all(self, keys: tuple[str, ...]) -> bool:
        return self._keeps_all or any(self._kind_of(key) in _OF_ALL for key in keys)

    def summarize(self, key: str) -> float | None:
        """Return the value of a key as `define_metric` asks for it, None if it has none."""
        kind, tally = self._kind_of(key), self.tally(key)
        return None if tally is None or kind == "none" else tally.summarize(kind)

    def note(self, event: Event) -> None:
        """Add the values of one event."""
        self._pending.append(event)
        if len(self._pending) >= _BATCH:
            self._add_pending(may_wait=False)

    def note_unread(self, values: Mapping[str, Any]) -> None:
        """Keep values on a device that nothing records: they are read when they are asked for."""
        self._unread.update(values)

    def forget_sets(self, kept: object) -> None:
        """Add up the tallies of sets, and drop them, except for the one that C still uses."""
        self._add_pending()
        for key in list(self._places):
            if (tally := self._read(key)) is not None:
                self._tallies[key] = tally
        sets, self._sets, self._places = self._sets, {}, {}
        for keys, memory in sets.items():
            if memory is kept and isinstance(memory, bytearray):
                memory[:] = bytes(len(memory))
                self._sets[keys] = memory
                self._places = {key: [(keys, place)] for place, key in enumerate(keys)}

    def reset(self) -> None:
        """Forget all values: a forked child has logged nothing."""
        self._tallies, self._unread = {}, {}
        self._lock = RLock()  # another thread of the parent may have held it
        self._pending.clear()
        for memory in self._sets.values():
            if isinstance(memory, deque):
                memory.clear()
            else:
                memory[:] = bytes(len(memory))

    def list_keys(self) -> list[str]:
        """Return the keys with values."""
        self._add_pending()
        candidates = {**self._tallies, **dict.fromkeys(self._places), **dict.fromkeys(self._unread)}
        return [key for key in candidates if key in self._unread or self._read(key) is not None]

    def tally(self, key: str) -> Tally | None:
        """Return the tally of a key, None if nothing was logged under it."""
        self._add_pending()
        if key in self._unread:
            self._read_device(key, self._unread.pop(key))
        return self._read(key)

    def _read(self, key: str) -> Tally | None:
        found = self._tallies.get(key)
        for keys, place in self._places.get(key, ()):
            tally = _tally_of(self._sets[keys], len(keys), place)
            if tally is not None:
                found = tally if found is None else found.plus(tally)
        return found

    def _read_device(self, key: str, value: Any) -> None:
        try:
            self.note((0, (key,), (float(value),)))
        except unless_interrupt(Exception):  # a lost device
            pass
        self._add_pending()

    def _add_pending(self, *, may_wait: bool = True) -> None:
        # The lock also where none is pending: another thread may have taken them, and not have added them yet.
        if not self._lock.acquire(timeout=_WAIT_S if may_wait else 0):
            return
        try:
            self._add_groups()
        finally:
            self._lock.release()

    def _add_groups(self) -> None:
        """Add what is kept: columns of consecutive events with the same keys at once."""
        group: list[tuple[float, ...]] = []
        keys: tuple[str, ...] = ()
        first = last = 0.0
        while self._pending:
            number, following, numbers = self._pending.popleft()
            if group and following != keys:
                self._add_columns(keys, group, first, last)
                group = []
            if not group:
                keys, first = following, number
            last = number
            group.append(numbers)
        if group:
            self._add_columns(keys, group, first, last)

    def _add_columns(self, keys: tuple[str, ...], group: list[tuple[float, ...]], first: float, last: float) -> None:
        for key, column in zip(keys, zip(*group, strict=True), strict=True):
            added = _tally(column, first, last)
            before = self._tallies.get(key)
            self._tallies[key] = added if before is None else before.plus(added)


def _tally(column: tuple[float, ...], first: float, last: float) -> Tally:
    total = sum(column)
    values: Iterable[float] = column
    n = len(column)
    if total != total:  # a NaN, or infinities of both signs
        values = [value for value in column if value == value]
        n, total = len(values), sum(values)
    low, high = (min(values), max(values)) if n else (math.inf, -math.inf)
    return Tally(len(column), n, first, last, column[-1], low, high, total, column[0])


def _tally_of(tally: bytearray | deque[Event], n_keys: int, place: int) -> Tally | None:
    if isinstance(tally, deque):
        if not (events := list(tally)):
            return None
        number, _, values = events[0]
        return Tally(0, 0, math.inf, number, values[place], math.inf, -math.inf, 0.0, values[place])
    n, first_number, last_number = struct.unpack_from("3d", tally)
    if not n:
        return None
    places = (_DOUBLE * (_COUNTS + column * n_keys + place) for column in range(_COLUMNS))
    last, low, high, total, first = (struct.unpack_from("d", tally, at)[0] for at in places)
    return Tally(int(n), int(n), first_number, last_number, last, low, high, total, first)
