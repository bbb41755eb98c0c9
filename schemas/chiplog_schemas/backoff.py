"""Waits between retries. They double, and a random factor spreads the processes that retry together."""

import random
from collections.abc import Callable

from chiplog_schemas.limits import BACKOFF_MAX_S, BACKOFF_MIN_S


def half_to_whole() -> float:
    """Return a random factor from 0.5 to 1, for the waits of processes that lost the same peer."""
    return random.uniform(0.5, 1.0)


class Backoff:
    """The waits of one loop of retries: call `next_s` after each failure and `reset` after a success.

    jitter: returns a factor for each wait; 1 by default. `wait_s` is the next wait, before jitter.
    """

    def __init__(
        self, min_s: float = BACKOFF_MIN_S, max_s: float = BACKOFF_MAX_S, jitter: Callable[[], float] | None = None
    ) -> None:
        self.wait_s = min_s
        self.max_s = max_s
        self._min_s = min_s
        self._jitter = jitter

    def next_s(self) -> float:
        """Return how long to wait now, and double the next wait."""
        wait_s = self.wait_s
        self.wait_s = min(2 * wait_s, self.max_s)
        return wait_s if self._jitter is None else wait_s * self._jitter()

    def reset(self) -> None:
        """Begin with the shortest wait again."""
        self.wait_s = self._min_s
