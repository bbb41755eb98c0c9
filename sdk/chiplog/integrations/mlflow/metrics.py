"""The metrics that this process logged to a run, in memory: MLflow asks for them right after it has logged them."""

import os
import struct
import threading
from array import array

from mlflow.entities import Metric

_POINT = struct.Struct("<qqd")
_lock = threading.Lock()  # of all series: MLflow logs from several threads
POINTS_MAX = 1_000_000  # of a run in memory, 24 bytes each; the oldest of the longest series go first, SQL has them


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # another thread of the parent may have held it


class Series:
    """Values of one metric, in the order of logging. Times are in milliseconds. The caller holds the lock."""

    __slots__ = ("_known", "latest", "steps", "times", "values")

    def __init__(self) -> None:
        self.steps, self.times, self.values = array("q"), array("q"), array("d")
        self.latest: tuple[int, int, float] | None = None  # by step, then time, then value, as in MLflow
        self._known: set[bytes] | None = None  # its points, once log_model has asked for one

    def add(self, step: int, time_ms: int, value: float) -> None:
        """Append a value."""
        self.steps.append(step)
        self.times.append(time_ms)
        self.values.append(value)
        if self._known is not None:
            self._known.add(_packed(step, time_ms, value))
        if self.latest is None or (step, time_ms, _comparable(value)) > (*self.latest[:2], _comparable(self.latest[2])):
            self.latest = (step, time_ms, value)

    def has(self, step: int, time_ms: int, value: float) -> bool:
        """Return True if this value was logged at this step and time. Two NaNs are the same value."""
        if self._known is None:
            self._known = set(map(_packed, self.steps, self.times, self.values))
        return _packed(step, time_ms, value) in self._known

    def forget_oldest(self, count: int) -> None:
        """Drop the values that were logged first."""
        for column in (self.steps, self.times, self.values):
            del column[:count]
        self._known = None

    def __len__(self) -> int:
        return len(self.times)


class LoggedMetrics:
    """The series of a run by key."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self.n_points = 0  # values in memory

    def add(self, key: str, step: int, time_ms: int, value: float, *, is_resent: bool = False) -> bool:
        """Keep a value that was logged. Return False if it may have been sent again, and is known."""
        with _lock:
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = Series()
            if is_resent and series.has(step, time_ms, value):
                return False
            series.add(step, time_ms, value)
            self.n_points += 1
            if self.n_points > POINTS_MAX:
                self._shrink()
        return True

    def _shrink(self) -> None:
        longest = max(self._series.values(), key=len)
        count = max(len(longest) // 2, 1)
        longest.forget_oldest(count)
        self.n_points -= count

    def latest(self) -> list[Metric]:
        """Return the value of each metric that MLflow shows: at the largest step, of these the newest."""
        found = [(key, series.latest) for key, series in list(self._series.items())]
        return [Metric(key, latest[2], latest[1], latest[0]) for key, latest in found if latest is not None]

    def history(self, key: str) -> list[Metric]:
        """Return all values of a metric in MLflow's order: by time, step and value."""
        with _lock:
            series = self._series.get(key)
            columns = (series.values[:], series.times[:], series.steps[:]) if series is not None else ()
        return sorted_history([Metric(key, *point) for point in zip(*columns, strict=True)])


def sorted_history(points: list[Metric]) -> list[Metric]:
    """Return values in MLflow's order: by time, step and value. It has NaN as 0."""
    return sorted(points, key=lambda point: (point.timestamp, point.step, _comparable(point.value)))


def _comparable(value: float) -> float:
    return value if value == value else 0.0


def _packed(step: int, time_ms: int, value: float) -> bytes:
    return _POINT.pack(step, time_ms, value + 0.0 if value == value else float("nan"))
