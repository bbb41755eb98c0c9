"""Capture what Python code writes to sys.stdout and sys.stderr, line by line, and pass it on to the terminal untouched.

First level: text written through the two stream objects. Output of C code and of subprocesses goes to the terminal
only. No thread and no pipe is involved, so native code that holds the GIL cannot deadlock on it.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from chiplog_schemas.limits import CONSOLE_BURST_LINES, CONSOLE_LINE_CHARS_MAX, CONSOLE_LINES_PER_S

STDOUT, STDERR = 1, 2


class Tee:
    """A text stream that hands every complete line to `on_line` and everything to the stream it stands for."""

    def __init__(self, stream: TextIO, on_line: Callable[[str], None]) -> None:
        self._stream = stream
        self._on_line: Callable[[str], None] | None = on_line
        self._partial = ""
        self._inside = False

    def write(self, text: str) -> int:
        """Write through, then note the lines that became complete."""
        written = self._stream.write(text)
        if self._on_line is not None and not self._inside:
            self._inside = True  # a warning printed while a line is noted must not be noted again
            try:
                self._note(text)
            except Exception:
                self._on_line = None  # telemetry must never break print()
            finally:
                self._inside = False
        return written

    def writelines(self, lines: Any) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def detach_capture(self) -> TextIO:
        """Stop noting, note what is left of an unfinished line, and return the stream behind."""
        if self._on_line is not None and self._partial:
            self._on_line(_folded(self._partial))
        self._on_line = None
        return self._stream

    def silence(self) -> None:
        """Stop noting."""
        self._on_line = None
        self._partial = ""

    def _note(self, text: str) -> None:
        assert self._on_line is not None
        *complete, self._partial = (self._partial + text).split("\n")
        self._partial = _folded(self._partial) if "\r" in self._partial[:-1] else self._partial
        self._partial = self._partial[-CONSOLE_LINE_CHARS_MAX:]
        for line in complete:
            self._on_line(_folded(line))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)


class Console:
    """Both streams of this process, captured from construction to `close`."""

    def __init__(self, on_line: Callable[[int, int, str], None], on_lost: Callable[[int], None]) -> None:
        self._emit = on_line
        self._on_lost = on_lost
        self._line_no = 0
        self._allowance = float(CONSOLE_BURST_LINES)
        self._refilled_at = time.monotonic()
        self._lost = 0
        self._out = Tee(sys.stdout, lambda line: self._line(STDOUT, line))
        self._err = Tee(sys.stderr, lambda line: self._line(STDERR, line))
        sys.stdout = self._out
        sys.stderr = self._err

    def close(self) -> None:
        """Give the streams back, unless somebody put others in their place meanwhile."""
        out, err = self._out.detach_capture(), self._err.detach_capture()
        if sys.stdout is self._out:
            sys.stdout = out
        if sys.stderr is self._err:
            sys.stderr = err
        self._declare()

    def close_in_child(self) -> None:
        """Let a forked child print through without noting: what it inherited is the parent's to tell."""
        self._out.silence()
        self._err.silence()

    def _line(self, stream: int, line: str) -> None:
        self._line_no += 1
        now = time.monotonic()
        self._allowance = min(CONSOLE_BURST_LINES, self._allowance + (now - self._refilled_at) * CONSOLE_LINES_PER_S)
        self._refilled_at = now
        if self._allowance < 1:
            self._lost += 1
            return
        self._allowance -= 1
        self._declare()
        self._emit(stream, self._line_no, line[:CONSOLE_LINE_CHARS_MAX])

    def _declare(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            self._on_lost(lost)


def _folded(line: str) -> str:
    """Keep of a progress bar, which returns to the start of its line, what stood there last."""
    return line.rstrip("\r").rpartition("\r")[2]
