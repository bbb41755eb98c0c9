"""Capture what Python code writes to sys.stdout and sys.stderr where they are no descriptors: notebooks, test runners.

Text written through the two stream objects is noted line by line and passed on untouched. Streams that are descriptors
are captured with all that C code and subprocesses write to them: capture.py. This is what remains when that fails, too.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from threading import get_ident
from typing import Any, TextIO

from chiplog.console.lines import TokenBucket, collapse_overwrites, truncate
from chiplog.safety.interrupts import is_interrupt
from chiplog_schemas.limits import CONSOLE_BURST_LINES, CONSOLE_LINE_CHARS_MAX, CONSOLE_LINES_PER_S

_WAITING_MAX = 10_000  # texts, while another thread notes one: it is stuck if there are more
STDOUT, STDERR = 1, 2


class TeeStream:
    """A text stream that hands every complete line to `on_line` and everything to the stream it stands for.

    turn: has one thread note at a time; one for all streams whose lines are counted together.
    """

    def __init__(self, stream: TextIO, on_line: Callable[[str], None], turn: "ReentrancyGuard | None" = None) -> None:
        self._stream = stream
        self._on_line: Callable[[str], None] | None = on_line
        self._partial = ""
        self._turn = turn or ReentrancyGuard()

    def write(self, text: str) -> int:
        """Write through, then note the lines that became complete."""
        written = self._stream.write(text)
        if self._on_line is not None:
            self._turn.note(self, text)
        return written

    def writelines(self, lines: Any) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def detach(self) -> TextIO:
        """Stop noting, note what is left of an unfinished line, and return the stream behind."""
        self._turn.note(self, "")  # what a thread may have left that was interrupted
        on_line, self._on_line = self._on_line, None
        if on_line is not None and self._partial:
            on_line(collapse_overwrites(self._partial))
        return self._stream

    def stop_recording(self) -> None:
        """Stop noting."""
        self._on_line = None
        self._partial = ""

    def note(self, text: str) -> None:
        """Note the lines that this text completes. By one thread at a time."""
        if self._on_line is None:
            return
        try:
            self._note(text, self._on_line)
        except Exception as error:
            if is_interrupt(error):
                raise
            self._on_line = None  # telemetry must never break print()

    def _note(self, text: str, on_line: Callable[[str], None]) -> None:
        *complete, self._partial = (self._partial + text).split("\n")
        if "\r" in self._partial[:-1]:
            # A return at the very end stays: what is written next stands in place of this, or ends it.
            self._partial = collapse_overwrites(self._partial) + ("\r" if self._partial.endswith("\r") else "")
        self._partial = self._partial[: CONSOLE_LINE_CHARS_MAX + 1]  # one more, so that what is cut is marked
        for line in complete:
            on_line(collapse_overwrites(line))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)


class ReentrancyGuard:
    """One thread notes at a time, and what other threads write in the meantime, too: none waits, and no line is lost.

    What is printed because a line is noted is left out and counted: noting that would print the next one.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[TeeStream, str]] = deque()
        self._noting_by = 0  # the thread
        self._lost = 0

    def take_lost(self) -> int:
        """Return how many lines were left out since this was asked before."""
        lost, self._lost = self._lost, 0
        return lost

    def note(self, tee: TeeStream, text: str) -> None:
        """Note a text of a stream, now or after the one that is being noted."""
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
    """The streams of this process, both or one, captured from construction to `close`.

    has_room: false while lines are to be dropped, for something else needs the room. They are declared by on_lost.
    last_line_no: of a capture that this one goes on for.
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
        self._pace = TokenBucket(time.monotonic(), lines_per_s, burst_lines)
        self._lost = 0
        self._turn = turn = ReentrancyGuard()
        # A process without a terminal may have no streams at all.
        out = sys.stdout if STDOUT in streams else None
        err = sys.stderr if STDERR in streams else None
        self._out = TeeStream(out, lambda line: self._line(STDOUT, line), turn) if out is not None else None
        self._err = TeeStream(err, lambda line: self._line(STDERR, line), turn) if err is not None else None
        sys.stdout = self._out or sys.stdout
        sys.stderr = self._err or sys.stderr

    def close(self) -> None:
        """Give the streams back, unless somebody put others in their place meanwhile."""
        for tee in filter(None, (self._out, self._err)):
            stream = tee.detach()
            if sys.stdout is tee:
                sys.stdout = stream
            if sys.stderr is tee:
                sys.stderr = stream
        self._declare()

    def take(self, stream: int, line: str) -> None:
        """Take a line that was written some other way."""
        self._line(stream, line)

    def release_in_child(self) -> None:
        """Let a forked child print through without noting: what it inherited is the parent's to tell."""
        for tee in filter(None, (self._out, self._err)):
            tee.stop_recording()

    def _line(self, stream: int, line: str) -> None:
        self.line_no += 1
        if not self._has_room() or not self._pace.allow(time.monotonic()):
            self._lost += 1
            return
        self._declare()
        self._emit(stream, self.line_no, truncate(line))

    def _declare(self) -> None:
        self._lost += self._turn.take_lost()
        if self._lost:
            lost, self._lost = self._lost, 0
            self._on_lost(lost)
