"""Decide which streams wake the helper when they are written to, and which one a timer polls. Pure.

A write to a pipe wakes the process that sleeps on it, and the writer pays: with an interrupt to another core, or, if no
core is idle, with its own core at once. That cost a training that prints at each step more than the rest of chiplog. So
a busy stream does not wake the helper: a timer polls it. All other streams wake the helper, which first relays what was
written before. A stream that fills its pipe between two polls wakes the helper too.
"""

from collections.abc import Collection

LOOK_INTERVAL_S = 0.015  # the maximum delay of output: less than one frame of a screen
QUIET_S = 0.05  # without output: after this a wake-up costs less than more polls
BURST_REST_S = 1.0  # a terminal wakes the helper so long after a burst: it holds one page, a pipe 64
_FULL = 1 / 4  # of a pipe, between two polls: its writer would soon have to wait
_PIPE_REST_S = 2 * LOOK_INTERVAL_S  # the same for a pipe, whose burst may continue
_CHANGE = 2  # the other stream needs this many times the writes to replace the polled one


class _StreamRate:
    """Recent writes of one stream."""

    __slots__ = ("at", "began", "burst_at", "bytes_max", "is_busy", "n_bytes", "rest_s", "writes")

    def __init__(self, holds_bytes: int, rest_s: float) -> None:
        self.bytes_max = int(holds_bytes * _FULL)
        self.rest_s = rest_s
        self.burst_at = float("-inf")  # when an interval last had more than `bytes_max`
        self.at = float("-inf")  # time of the last write
        self.is_busy = False  # the last two writes were less than QUIET_S apart
        self.writes = 0.0  # decaying count of recent writes
        self.began = float("-inf")  # start of this interval
        self.n_bytes = 0  # in this interval


class PollPolicy:
    """Choose the polled stream. holds_bytes: by descriptor, how much a stream takes before its writer has to wait."""

    def __init__(self, holds_bytes: dict[int, int], terminals: Collection[int] = ()) -> None:
        self._flows = {
            descriptor: _StreamRate(n_bytes, BURST_REST_S if descriptor in terminals else _PIPE_REST_S)
            for descriptor, n_bytes in holds_bytes.items()
        }
        self.timer_fd: int | None = None  # the polled stream; one at most, so that the order stays known

    def record_write(self, descriptor: int, data: bytes, now: float) -> None:
        """Record a write to a stream."""
        flow = self._flows[descriptor]
        pause_s = now - flow.at
        flow.is_busy = pause_s < QUIET_S
        flow.at = now
        flow.writes = flow.writes * 0.5 ** (pause_s / QUIET_S) + max(1, data.count(b"\n") + data.count(b"\r"))
        if now - flow.began >= LOOK_INTERVAL_S:
            flow.began, flow.n_bytes = now, 0
        flow.n_bytes += len(data)
        if flow.n_bytes > flow.bytes_max:
            flow.burst_at = now

    def forget(self, descriptor: int) -> None:
        """Drop a stream that has ended."""
        del self._flows[descriptor]

    def choose_timer_stream(self, now: float) -> int | None:
        """Choose the stream that the timer polls: the busiest one, None if no stream is busy. Sets `timer_fd`."""
        writes = {
            descriptor: flow.writes * (_CHANGE if descriptor == self.timer_fd else 1)
            for descriptor, flow in self._flows.items()
            if flow.is_busy and now - flow.at < QUIET_S and now - flow.burst_at > flow.rest_s
        }
        self.timer_fd = max(writes, key=writes.__getitem__, default=None)
        return self.timer_fd
