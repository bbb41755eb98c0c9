"""Capture what Python code writes to sys.stdout and sys.stderr where they have no descriptor: notebooks, test runners.

Text written through the two stream objects is recorded line by line and passed on unchanged. capture.py captures
descriptors, with everything that C code and subprocesses write to them, and falls back to this module if that fails.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from threading import get_ident
from typing import Any, TextIO

from chiplog.console.lines import LineLimiter, LineSplitter
from chiplog_schemas.interrupts import unless_interrupt

_WAITING_MAX = 10_000  # texts that wait while another thread records: with more of them it is stuck
STDOUT, STDERR = 1, 2
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


class TeeStream:
    """A text stream that passes every complete line to `on_line` and all text to the stream that it replaces.

    guard: lets one thread record at a time; shared by all streams whose lines are counted together.
    """

    def __init__(self, stream: TextIO, on_line: Callable[[str], None], guard: "ReentrancyGuard") -> None:
        self._stream = stream
        self._on_line: Callable[[str], None] | None = on_line
        self._lines = LineSplitter()
        self._guard = guard

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

    def __init__(self, limiter: LineLimiter) -> None:
        self._limiter = limiter
        self._waiting: deque[tuple[TeeStream, str]] = deque()
        self._noting_by = 0  # thread ID, 0 for none

    def note(self, tee: TeeStream, text: str) -> None:
        """Record a text of a stream, or queue it for the thread that is recording."""
        waiting, me = self._waiting, get_ident()
        if self._noting_by == me or len(waiting) >= _WAITING_MAX:
            n_lines = text.count("\n")
            self._limiter.n_lost += n_lines
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
    """Capture one or both streams of this process, from construction to `close`. limiter: takes their lines."""

    def __init__(self, limiter: LineLimiter, streams: Collection[int] = (STDOUT, STDERR)) -> None:
        self._limiter = limiter
        self._tees: list[TeeStream] = []
        guard = ReentrancyGuard(limiter)
        for stream in streams:
            python = getattr(sys, _NAMES[stream])
            if python is not None:  # a process without a terminal may have no streams at all
                self._tees.append(TeeStream(python, partial(self._take, stream), guard))
                setattr(sys, _NAMES[stream], self._tees[-1])

    def close(self) -> None:
        """Restore the streams, unless other code has replaced them."""
        for tee in self._tees:
            stream = tee.detach()
            for name in _NAMES.values():
                if getattr(sys, name) is tee:
                    setattr(sys, name, stream)
        self._limiter.declare()

    def tick(self) -> None:
        """Record the rows of progress bars that are not drawn any more. The sender thread calls this."""
        for tee in self._tees:
            tee.tick()

    def release_in_child(self) -> None:
        """Stop recording in a forked child: the parent records the lines that it inherited."""
        for tee in self._tees:
            tee.stop_recording()

    def _take(self, stream: int, line: str) -> None:
        self._limiter.take(stream, [line], time.monotonic())
