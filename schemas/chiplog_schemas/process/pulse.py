"""The pulse of a daemon's loop: whether it turns, and when what it measures of itself is due."""

import time

TURN_MAX_S = 5.0  # a loop that does not turn for this long is not alive


class Pulse:
    """When a loop last turned. `not_alive` may be called by any thread.

    Args:
        loop: What a line calls it, such as "the agent's loop".
        period_s: Between two values that the daemon measures of itself, in s.
        now: Monotonic, s.
    """

    def __init__(self, loop: str, period_s: float, now: float) -> None:
        self._loop = loop
        self._period_s = period_s
        self._turned_at = now
        self._due_at = now + period_s

    def turn(self, now: float) -> bool:
        """Note one turn. Return True if the values are due."""
        self._turned_at = now
        return now >= self._due_at

    def note_read(self, now: float) -> None:
        """Note that the values were read: the next are due one period later."""
        self._due_at = max(self._due_at + self._period_s, now)

    def not_alive(self) -> str:
        """Return why the daemon is not alive; "" if it is."""
        silent_s = time.monotonic() - self._turned_at
        return f"{self._loop} has not turned for {silent_s:.0f} s" if silent_s > TURN_MAX_S else ""
