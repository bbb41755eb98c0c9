"""The metrics that this process logged to a run, in memory: MLflow asks for them right after it has logged them."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from mlflow.entities import Metric

POINTS_MAX = 1_000_000  # of a run in memory, 24 bytes each; the oldest of the longest series go first, SQL has them


class Series:
    """Values of one metric, in the order of logging. Times are in milliseconds."""

    __slots__ = ("_is_sorted", "latest", "steps", "times", "values")

    def __init__(self) -> None:
        self.steps, self.times, self.values = array("q"), array("q"), array("d")
        self.latest: tuple[int, int, float] | None = None  # by step, then time, then value, as in MLflow
        self._is_sorted = True  # by time

    def add(self, step: int, time_ms: int, value: float) -> None:
        """Append a value."""
        if self.times and time_ms < self.times[-1]:
            self._is_sorted = False
        self.steps.append(step)
        self.times.append(time_ms)
        self.values.append(value)
        if self.latest is None or (step, time_ms, _comparable(value)) > (*self.latest[:2], _comparable(self.latest[2])):
            self.latest = (step, time_ms, value)

    def has(self, step: int, time_ms: int, value: float) -> bool:
        """Return True if this value was logged at this step and time. Two NaNs are the same value."""
        if not self.times:
            return False
        if self._is_sorted:
            if time_ms > self.times[-1]:
                return False
            first = bisect_left(self.times, time_ms)
        else:
            first = 0
        for number in range(first, len(self.times)):
            if self._is_sorted and self.times[number] != time_ms:
                return False
            if self._is(number, step, time_ms, value):
                return True
        return False

    def _is(self, number: int, step: int, time_ms: int, value: float) -> bool:
        known = self.values[number]
        is_same = known == value or (known != known and value != value)
        return is_same and self.steps[number] == step and self.times[number] == time_ms

    def forget_oldest(self, count: int) -> None:
        """Drop the values that were logged first."""
        for column in (self.steps, self.times, self.values):
            del column[:count]

    def __len__(self) -> int:
        return len(self.times)


class LoggedMetrics:
    """The series of a run by key."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self.n_points = 0  # values in memory

    def add(self, key: str, step: int, time_ms: int, value: float) -> None:
        """Keep a value that was logged."""
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series()
        series.add(step, time_ms, value)
        self.n_points += 1
        if self.n_points > POINTS_MAX:
            self._shrink()

    def has(self, key: str, step: int, time_ms: int, value: float) -> bool:
        """Return True if exactly this was logged before."""
        series = self._series.get(key)
        return series is not None and series.has(step, time_ms, value)

    def _shrink(self) -> None:
        longest = max(self._series.values(), key=len)
        count = max(len(longest) // 2, 1)
        longest.forget_oldest(count)
        self.n_points -= count

    def keys(self) -> list[str]:
        """Return the names of the metrics."""
        return list(self._series)

    def latest(self) -> list[Metric]:
        """Return the value of each metric that MLflow shows: at the largest step, of these the newest."""
        found = [(key, series.latest) for key, series in list(self._series.items())]
        return [Metric(key, latest[2], latest[1], latest[0]) for key, latest in found if latest is not None]

    def history(self, key: str) -> list[Metric]:
        """Return all values of a metric in MLflow's order: by time, step and value."""
        return sorted_history(list(self._points(key)))

    def _points(self, key: str) -> Iterator[Metric]:
        series = self._series.get(key)
        if series is not None:
            for step, time_ms, value in zip(series.steps, series.times, series.values, strict=False):
                yield Metric(key, value, time_ms, step)


def sorted_history(points: list[Metric]) -> list[Metric]:
    """Return values in MLflow's order: by time, step and value. It has NaN as 0."""
    return sorted(points, key=lambda point: (point.timestamp, point.step, _comparable(point.value)))


def _comparable(value: float) -> float:
    return value if value == value else 0.0
