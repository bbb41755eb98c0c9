"""Messages that are written once, however often their cause occurs."""

import math
from collections.abc import Callable, Hashable
from typing import Any


class OnceLogger:
    """Writes the first message of each key.

    write: writes a message, such as a logger's `warning`. keys_max: how many keys are kept; messages of more keys are
    not written, so that text that differs each time fills neither the memory nor the log. quiet_s: a key that did not
    occur for this long is written again.
    """

    def __init__(self, write: Callable[..., object], keys_max: int, quiet_s: float = math.inf) -> None:
        self._write = write
        self._keys_max = keys_max
        self._quiet_s = quiet_s
        self._seen_at: dict[Hashable, float] = {}

    def log(self, key: Hashable, *message: Any, now: float = 0.0) -> bool:
        """Write a message, or else the key, if it is the first of its key. Return True if so. now: monotonic, s."""
        seen_at = self._seen_at.get(key)
        if seen_at is None and len(self._seen_at) >= self._keys_max:
            return False
        self._seen_at[key] = now
        if seen_at is not None and now - seen_at < self._quiet_s:
            return False
        self._write(*(message or (key,)))
        return True
