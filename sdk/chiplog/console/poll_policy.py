"""Decide whether the console's helper sleeps on its streams or looks at them every 15 ms. Pure.

A write to a pipe wakes the process that sleeps on it, and the writer pays: with an interrupt to another core, or, if no
core is idle, with its own core at once. That cost a training that prints at each step more than the rest of chiplog. So
while a stream is busy, the helper sleeps on a timer. While a stream fills its pipe between two polls, it does not.
"""

from collections.abc import Collection

POLL_INTERVAL_S = 0.015  # the maximum delay of output: less than one frame of a screen
QUIET_S = 0.05  # without output: after this a wake-up costs less than more polls
BURST_REST_S = 1.0  # a terminal wakes the helper so long after a burst: it holds one page, a pipe 64
_FULL = 1 / 4  # of a pipe, between two polls: its writer would soon have to wait
_PIPE_REST_S = 2 * POLL_INTERVAL_S  # the same for a pipe, whose burst may continue


class _StreamRate:
    """Recent writes of one stream."""

    __slots__ = ("at", "began", "burst_at", "bytes_max", "is_busy", "n_bytes", "rest_s")

    def __init__(self, holds_bytes: int, rest_s: float) -> None:
        self.bytes_max = int(holds_bytes * _FULL)
        self.rest_s = rest_s
        self.burst_at = float("-inf")  # when an interval last had more than `bytes_max`
        self.at = float("-inf")  # time of the last write
        self.is_busy = False  # the last two writes were less than QUIET_S apart
        self.began = float("-inf")  # start of this interval
        self.n_bytes = 0  # in this interval


class PollPolicy:
    """Choose how to sleep. holds_bytes: by descriptor, how much a stream takes before its writer has to wait."""

    def __init__(self, holds_bytes: dict[int, int], terminals: Collection[int] = ()) -> None:
        self._rates = {
            descriptor: _StreamRate(n_bytes, BURST_REST_S if descriptor in terminals else _PIPE_REST_S)
            for descriptor, n_bytes in holds_bytes.items()
        }

    def record_write(self, descriptor: int, n_bytes: int, now: float) -> None:
        """Record a write to a stream."""
        rate = self._rates[descriptor]
        rate.is_busy = now - rate.at < QUIET_S
        rate.at = now
        if now - rate.began >= POLL_INTERVAL_S:
            rate.began, rate.n_bytes = now, 0
        rate.n_bytes += n_bytes
        if rate.n_bytes > rate.bytes_max:
            rate.burst_at = now

    def forget(self, descriptor: int) -> None:
        """Drop a stream that has ended."""
        del self._rates[descriptor]

    def uses_timer(self, now: float) -> bool:
        """Return True if a stream is busy and none had a burst: sleep for POLL_INTERVAL_S, without the streams."""
        rates = self._rates.values()
        is_busy = any(rate.is_busy and now - rate.at < QUIET_S for rate in rates)
        return is_busy and all(now - rate.burst_at > rate.rest_s for rate in rates)
