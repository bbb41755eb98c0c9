"""What ranks report of their SDK: checked, and summed up for the node. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from chiplog_schemas.model.system_metrics import SDK_METRICS

_COUNTERS = tuple(name for name, metric in SDK_METRICS.items() if metric.is_counter)
# Ranks report each 10 s. Reports need no credit, and each becomes a row: a peer must not fill the spool with them.
_INTERVAL_MIN_S = 5.0
_VALUE_MAX = float(1 << 63)  # as other counts; sums of more could become infinite
_AGES = frozenset(name for name, metric in SDK_METRICS.items() if not metric.is_counter and metric.unit == "s")


class SdkReports:
    """The newest report of each rank, and counters that include those of ranks that have ended."""

    def __init__(self) -> None:
        self._newest: dict[bytes, dict[str, float]] = {}
        self._taken_at: dict[bytes, float] = {}  # monotonic
        self._sums = dict.fromkeys(_COUNTERS, 0.0)

    def take(self, producer: bytes, health: Mapping[Any, Any], now: float) -> bool:
        """Note the valid values of a report: a peer may send anything, and a newer one more.

        Return False if the report is ignored because it follows another one too soon.
        """
        if now - self._taken_at.get(producer, -_INTERVAL_MIN_S) < _INTERVAL_MIN_S:
            return False
        self._taken_at[producer] = now
        values = {name: float(health[name]) for name in SDK_METRICS if _is_valid(health.get(name))}
        former = self._newest.get(producer, {})
        for name in _COUNTERS:
            self._sums[name] += max(0.0, values.get(name, 0.0) - former.get(name, 0.0))
        self._newest[producer] = former | values
        return True

    def of(self, producers: Iterable[bytes]) -> dict[str, float]:
        """Return the newest values of ranks together: sums, and the worst age."""
        reports = [self._newest[producer] for producer in producers if producer in self._newest]
        together: dict[str, float] = {}
        for name in SDK_METRICS:
            if values := [report[name] for report in reports if name in report]:
                together[name] = max(values) if name in _AGES else sum(values)
        return together

    def totals(self, present: Iterable[bytes]) -> dict[str, float]:
        """Return the values of all ranks together; gauges are those of the present ones. Nothing without a report."""
        return {**self.of(present), **self._sums} if any(self._sums.values()) else {}

    def forget(self, producer: bytes) -> None:
        """Drop the newest report of a rank that is gone; its counts remain."""
        self._newest.pop(producer, None)
        self._taken_at.pop(producer, None)


def _is_valid(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _VALUE_MAX  # False also for NaN
