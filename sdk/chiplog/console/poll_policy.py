"""Which streams wake the helper when somebody writes to them, and which one it looks at by a timer. Pure.

A write to a pipe on which somebody sleeps wakes the sleeper, and the writer pays: with an interrupt to another core, or
where none is idle with its own core at once. That cost a training that prints at each step more than all else of us. So
of a stream that is written to all the time nobody is told: a timer looks at it. All others wake the helper, which then
first moves what was written before; and so does one that fills its pipe between two looks.
"""

from collections.abc import Collection

LOOK_INTERVAL_S = 0.015  # what is printed appears at most so much later, less than a picture of a screen takes
QUIET_S = 0.05  # without a word: to be woken costs less than more looks in vain
BURST_REST_S = 1.0  # after a burst a terminal wakes so long: tables come again, and it holds a page, not 64 of them
_FULL = 1 / 4  # of a pipe, between two looks: its writer would have to wait soon
_PIPE_REST_S = 2 * LOOK_INTERVAL_S  # after such a burst, in which it may go on
_CHANGE = 2  # times as much has to be written to the other stream before they change roles


class _StreamRate:
    """What came of one stream lately."""

    __slots__ = ("at", "began", "burst_at", "bytes_max", "is_busy", "n_bytes", "rest_s", "writes")

    def __init__(self, holds_bytes: int, rest_s: float) -> None:
        self.bytes_max = int(holds_bytes * _FULL)
        self.rest_s = rest_s
        self.burst_at = float("-inf")  # when more than that had come in an interval
        self.at = float("-inf")  # when something came last
        self.is_busy = False  # and something before that, shortly
        self.writes = 0.0  # about so many lately: what was longer ago counts less
        self.began = float("-inf")  # of this interval
        self.n_bytes = 0  # in this interval


class PollPolicy:
    """Streams by their descriptors. holds_bytes: how much each takes before its writer has to wait."""

    def __init__(self, holds_bytes: dict[int, int], terminals: Collection[int] = ()) -> None:
        self._flows = {
            descriptor: _StreamRate(n_bytes, BURST_REST_S if descriptor in terminals else _PIPE_REST_S)
            for descriptor, n_bytes in holds_bytes.items()
        }
        self.timer_fd: int | None = None  # the stream that wakes nobody. One at most, so that no order is guessed

    def record_write(self, descriptor: int, data: bytes, now: float) -> None:
        """Note what came of a stream."""
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
        """Return, and keep in `by_timer`, the stream that needs to wake nobody just now: the busier one, if any."""
        writes = {
            descriptor: flow.writes * (_CHANGE if descriptor == self.timer_fd else 1)
            for descriptor, flow in self._flows.items()
            if flow.is_busy and now - flow.at < QUIET_S and now - flow.burst_at > flow.rest_s
        }
        self.timer_fd = max(writes, key=writes.__getitem__, default=None)
        return self.timer_fd
