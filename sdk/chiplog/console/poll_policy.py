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


class StreamRate:
    """Recent writes of one stream. holds_bytes: how much it takes before its writer has to wait."""

    def __init__(self, holds_bytes: int, *, is_terminal: bool) -> None:
        self._bytes_max = int(holds_bytes * _FULL)
        self._rest_s = BURST_REST_S if is_terminal else _PIPE_REST_S
        self._burst_at = float("-inf")  # when an interval last had more than `_bytes_max`
        self._at = float("-inf")  # time of the last write
        self._is_busy = False  # the last two writes were less than QUIET_S apart
        self._began = float("-inf")  # start of this interval
        self._n_bytes = 0  # in this interval

    def record_write(self, n_bytes: int, now: float) -> None:
        """Record a write to the stream."""
        self._is_busy = now - self._at < QUIET_S
        self._at = now
        if now - self._began >= POLL_INTERVAL_S:
            self._began, self._n_bytes = now, 0
        self._n_bytes += n_bytes
        if self._n_bytes > self._bytes_max:
            self._burst_at = now

    def is_busy(self, now: float) -> bool:
        """Return True if the stream is written to again and again."""
        return self._is_busy and now - self._at < QUIET_S

    def had_burst(self, now: float) -> bool:
        """Return True if the stream nearly filled up a short time ago."""
        return now - self._burst_at <= self._rest_s


def uses_timer(rates: Collection[StreamRate], now: float) -> bool:
    """Return True if a stream is busy and none had a burst: sleep for POLL_INTERVAL_S, without the streams."""
    return any(rate.is_busy(now) for rate in rates) and not any(rate.had_burst(now) for rate in rates)
