"""The wall clock of events and records. Intervals and deadlines use time.monotonic().

`log()` and the timing of devices write `time_ns() // 1000` out: a call would make each of them slower.
"""

import time


def now_us() -> int:
    """Return the wall time in µs since the epoch, UTC."""
    return time.time_ns() // 1000
