"""A curve as one line of bars."""

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_MISSING, _NOT_FINITE = "·", "×"


def sparkline(values: Sequence[float | None]) -> str:
    """Return a bar per value, from the lowest to the highest of them; · for None, × for NaN and infinity."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    lowest, highest = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_bar(value, lowest, highest) for value in values)


def _bar(value: float | None, lowest: float, highest: float) -> str:
    if value is None:
        return _MISSING
    if not math.isfinite(value):
        return _NOT_FINITE
    if highest == lowest:
        return _BARS[0]
    share = (value / 2 - lowest / 2) / (highest / 2 - lowest / 2)  # halves: the difference itself may overflow
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
