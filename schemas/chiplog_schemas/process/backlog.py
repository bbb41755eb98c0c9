"""How old what waits at a hop is, from how far a log is and how far the next hop has it. Pure."""

from collections import deque
from collections.abc import Iterable

_GATHER_S = 0.25  # records of this time count as one
_ENTRIES_MAX = 1_024  # above it, pairs become one: the age is then a little too high


class Backlog:
    """When the records of a log were added, until the next hop has them.

    Args:
        now: Monotonic, s.
        former: What the log had before: the numbers after some records, and the age of the first of them in s. Oldest
            first. The next hop may have had them for long, so they do not count in `take_slowest_s`.

    Attributes:
        done_at: When the next hop last took something, or last had everything; monotonic, s.
    """

    def __init__(self, now: float, former: Iterable[tuple[int, float]] = ()) -> None:
        self.done_at = now
        # The number after the records, and when the first was added.
        self._added = deque((number, now - age_s) for number, age_s in former)
        self._former_until = self._added[-1][0] if self._added else 0
        self._slowest_s = 0.0

    def note(self, next_number: int, done_number: int, now: float, *, is_reached: bool = True) -> None:
        """Note how far the log is, and how far the next hop: the numbers after the last record. now: monotonic, s.

        is_reached: whether the next hop answers; nothing is done by one that does not.
        """
        added = self._added
        if not added or next_number > added[-1][0]:
            if added and now - added[-1][1] < _GATHER_S:
                added[-1] = (next_number, added[-1][1])
            elif next_number > done_number:
                added.append((next_number, now))
        while added and added[0][0] <= done_number:
            number, since = added.popleft()
            if number > self._former_until:
                self._slowest_s = max(self._slowest_s, now - since)
            self.done_at = now
        if not added and is_reached:
            self.done_at = now
        if len(added) > _ENTRIES_MAX:
            kept = list(added)
            self._added = deque((later[0], earlier[1]) for earlier, later in zip(kept[::2], kept[1::2], strict=False))
            if len(kept) % 2:
                self._added.append(kept[-1])

    def age_s(self, now: float) -> float:
        """Return the age of the oldest record that the next hop does not have; 0 if it has all."""
        try:
            return max(0.0, now - self._added[0][1])
        except IndexError:  # empty, perhaps since a moment ago: another thread may ask
            return 0.0

    def take_slowest_s(self) -> float:
        """Return how long the slowest record waited of those that were done since the last call."""
        slowest_s, self._slowest_s = self._slowest_s, 0.0
        return slowest_s
