"""Capture what Python code writes to sys.stdout and sys.stderr where they have no descriptor: notebooks, test runners.

Text written through the two stream objects is recorded line by line and passed on unchanged. capture.py captures
descriptors, with everything that C code and subprocesses write to them, and falls back to this module if that fails.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from threading import get_ident
from typing import Any, TextIO

from chiplog.console.lines import LineSplitter
from chiplog_schemas.interrupts import unless_interrupt
from chiplog_schemas.limits import CONSOLE_BURST_LINES, CONSOLE_LINES_PER_S
from chiplog_schemas.rate_limit import TokenBucket

_WAITING_MAX = 10_000  # texts that wait while another thread records: with more of them it is stuck
STDOUT, STDERR = 1, 2


class TeeStream:
    """A text stream that passes every complete line to `on_line` and all text to the stream that it replaces.

    guard: lets one thread record at a time; shared by all streams whose lines are counted together.
    """

    def __init__(self, stream: TextIO, on_line: Callable[[str], None], guard: "ReentrancyGuard | None" = None) -> None:
        self._stream = stream
        self._on_line: Callable[[str], None] | None = on_line
        self._lines = LineSplitter()
        self._guard = guard or ReentrancyGuard()

    def write(self, text: str) -> int:
        """Write through, then record the lines that became complete."""
        written = self._stream.write(text)
        if self._on_line is not None:
            self._guard.note(self, text)
        return written

    def writelines(self, lines: Any) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def detach(self) -> TextIO:
        """Stop recording, record an unterminated line, and return the wrapped stream."""
        self._guard.note(self, "")  # an interrupted thread may have left texts
        on_line, self._on_line = self._on_line, None
        if on_line is not None:
            for line in self._lines.flush():
                on_line(line)
        return self._stream

    def stop_recording(self) -> None:
        """Stop recording and discard held lines and an unterminated one."""
        self._on_line = None
        self._lines = LineSplitter()

    def tick(self) -> None:
        """Record the rows of progress bars that are not drawn any more."""
        if self._lines.is_holding:
            self._guard.note(self, "")

    def note(self, text: str) -> None:
        """Record the lines that this text completes. One thread at a time may call this."""
        if self._on_line is None:
            return
        try:
            for line in self._lines.feed(text, time.monotonic()):
                self._on_line(line)
        except unless_interrupt(Exception):
            self._on_line = None  # telemetry must never break print()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)


class ReentrancyGuard:
    """Let one thread record at a time, for the other threads too: no thread waits, and no line is lost.

    Output that recording itself causes is dropped and counted: recording it would cause more output.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[TeeStream, str]] = deque()
        self._noting_by = 0  # thread ID, 0 for none
        self._lost = 0

    def take_lost(self) -> int:
        """Return how many lines were dropped since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def note(self, tee: TeeStream, text: str) -> None:
        """Record a text of a stream, or queue it for the thread that is recording."""
        waiting, me = self._waiting, get_ident()
        if self._noting_by == me or len(waiting) >= _WAITING_MAX:
            self._lost += text.count("\n")
            return
        waiting.append((tee, text))
        while waiting:
            if self._noting_by:
                return
            self._noting_by = me  # and into the `try`: no call lies between, so no exception can leave it set
            try:
                while waiting:
                    tee, text = waiting.popleft()
                    tee.note(text)
            finally:
                self._noting_by = 0


class PythonStreamCapture:
    """Capture one or both streams of this process, from construction to `close`.

    has_room: returns False while the room is needed for something else. Lines are dropped then, and on_lost declares
    them. last_line_no: of the capture that this one continues.
    """

    def __init__(
        self,
        on_line: Callable[[int, int, str], None],
        on_lost: Callable[[int], None],
        has_room: Callable[[], bool] = lambda: True,
        *,
        lines_per_s: int = CONSOLE_LINES_PER_S,
        burst_lines: int = CONSOLE_BURST_LINES,
        streams: Collection[int] = (STDOUT, STDERR),
        last_line_no: int = 0,
    ) -> None:
        self._emit = on_line
        self._on_lost = on_lost
        self._has_room = has_room
        self.line_no = last_line_no
        self._line_bucket = TokenBucket(time.monotonic(), lines_per_s, burst_lines)
        self._lost = 0
        self._guard = guard = ReentrancyGuard()
        # A process without a terminal may have no streams at all.
        out = sys.stdout if STDOUT in streams else None
        err = sys.stderr if STDERR in streams else None
        self._out = TeeStream(out, lambda line: self._line(STDOUT, line), guard) if out is not None else None
        self._err = TeeStream(err, lambda line: self._line(STDERR, line), guard) if err is not None else None
        sys.stdout = self._out or sys.stdout
        sys.stderr = self._err or sys.stderr

    def close(self) -> None:
        """Restore the streams, unless other code has replaced them."""
        for tee in filter(None, (self._out, self._err)):
            stream = tee.detach()
            if sys.stdout is tee:
                sys.stdout = stream
            if sys.stderr is tee:
                sys.stderr = stream
        self._declare()

    def tick(self) -> None:
        """Record the rows of progress bars that are not drawn any more. The sender thread calls this."""
        for tee in filter(None, (self._out, self._err)):
            tee.tick()

    def take(self, stream: int, line: str) -> None:
        """Record a line that was written some other way."""
        self._line(stream, line)

    def release_in_child(self) -> None:
        """Stop recording in a forked child: the parent records the lines that it inherited."""
        for tee in filter(None, (self._out, self._err)):
            tee.stop_recording()

    def _line(self, stream: int, line: str) -> None:
        self.line_no += 1
        if not self._has_room() or not self._line_bucket.allow(time.monotonic()):  # safeguard: line-rate-bounded
            self._lost += 1
            return
        self._declare()
        self._emit(stream, self.line_no, line)

    def _declare(self) -> None:
        self._lost += self._guard.take_lost()
        if self._lost:
            lost, self._lost = self._lost, 0
            self._on_lost(lost)
