"""The names of metrics and phases that one label has used, up to a limit."""

from collections.abc import Callable


class LoggedKeys:
    """The keys of one label. report: called with each key that exceeds the limit, and with the limit."""

    def __init__(self, keys_max: int, report: Callable[[str, int], None]) -> None:
        self._max = keys_max
        self._report = report
        self._keys: set[str] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def register(self, key: str) -> bool:
        """Add a key. Return False if it exceeds the limit."""
        if self.exceeds_limit(key):
            return False
        self._keys.add(key)
        return True

    def exceeds_limit(self, key: str) -> bool:
        """Return True if a key exceeds the limit, and count it, without a message for each: there may be millions."""
        if len(self._keys) < self._max or key in self._keys:  # safeguard: keys-bounded
            return False
        self._report(key, self._max)
        return True
