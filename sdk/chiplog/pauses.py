"""How long Python's garbage collector stopped this process."""

import contextlib
import gc
from time import perf_counter


class Pauses:
    """Add up the collector's pauses from `start` to `stop`: two calls of a function for each of them."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began = 0.0

    def start(self) -> None:
        """Begin to look."""
        gc.callbacks.append(self._noted)

    def stop(self) -> None:
        """Look no more."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._noted)

    def take(self) -> float:
        """Return the seconds since this was asked before."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _noted(self, moment: str, info: dict[str, int]) -> None:
        if moment == "start":
            self._began = perf_counter()
        else:
            self._seconds += perf_counter() - self._began
