"""Turn what a process writes into the lines to record: split, fold progress bars, truncate, limit. Pure."""

import codecs
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from chiplog_schemas.limits import CONSOLE_LINE_CHARS_MAX
from chiplog_schemas.rate_limit import TokenBucket

if TYPE_CHECKING:
    from chiplog.console.screen import Screen

# What a plain text lacks: a return that is not part of a line end, a backspace, a sequence that is not a color.
_CONTROL = re.compile(r"\r(?!\n|\Z)|\x08|\x1b(?!\[[0-9;:]*m)")
_PARTIAL_CHARS_MAX = CONSOLE_LINE_CHARS_MAX + 1  # one more than is kept, so that truncation is marked


class LineSplitter:
    """Split the text of one stream into lines. What is redrawn is held until it is final, see `Screen`.

    `now`: seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self.partial = ""  # an unterminated line without controls
        self._screen: Screen | None = None  # from the first control on, until nothing is held

    @property
    def is_holding(self) -> bool:
        """Return True if `settle` may return lines later."""
        return self._screen is not None

    def feed(self, text: str, now: float) -> list[str]:
        """Return the lines that became final."""
        if self._screen is None and not _CONTROL.search(text := self.partial + text):
            *complete, partial = text.split("\n")
            if len(partial) > _PARTIAL_CHARS_MAX:
                partial = partial[:_PARTIAL_CHARS_MAX] + "\r" * partial.endswith("\r")
            self.partial = partial
            return [truncate(line.rstrip("\r")) for line in complete]
        if self._screen is None:
            from chiplog.console.screen import Screen  # imported late: most ranks print plain lines

            self._screen, self.partial = Screen(now), ""
        return self._lines_of(self._screen, self._screen.feed(text, now))

    def settle(self, now: float) -> list[str]:
        """Return the held lines that became final by `now`."""
        return [] if self._screen is None else self._lines_of(self._screen, self._screen.settle(now))

    def flush(self) -> list[str]:
        """Return all held lines and the unterminated one, and reset."""
        lines = [self.partial.rstrip("\r")] if self.partial else [] if self._screen is None else self._screen.flush()
        self.partial, self._screen = "", None
        return [truncate(line) for line in lines]

    def _lines_of(self, screen: "Screen", lines: list[str]) -> list[str]:
        if screen.is_plain:
            self._screen = None
        return [truncate(line) for line in lines]


class ByteSplitter(LineSplitter):
    """The same for bytes, which may end within a character. Bytes that are not UTF-8 are kept by surrogateescape."""

    def __init__(self) -> None:
        super().__init__()
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def feed_bytes(self, data: bytes, now: float) -> list[str]:
        """Return the lines that became final."""
        return self.feed(self._decoder.decode(data), now)

    def flush(self) -> list[str]:
        """Return all held lines and the unterminated one, and reset."""
        rest = self._decoder.decode(b"", final=True)
        lines = self.feed(rest, 0.0) if rest else []
        return lines + super().flush()


def truncate(line: str) -> str:
    """Truncate a line that is too long, and mark the cut."""
    return line if len(line) <= CONSOLE_LINE_CHARS_MAX else line[: CONSOLE_LINE_CHARS_MAX - 1] + "…"


class LineLimiter:
    """Number the lines of both streams, and drop those above the rate. A notice declares them before the next line.

    on_line: called with a stream, the number of a line, and the line. on_lost: called with the message and the body of
    a notice. has_room: returns False while the room is needed for something else; lines are dropped then too.
    """

    def __init__(
        self,
        on_line: Callable[[int, int, str], None],
        on_lost: Callable[[str, dict[str, int]], None],
        has_room: Callable[[], bool],
        lines_per_s: float,
        burst_lines: float,
        last_line_no: int = 0,
    ) -> None:
        self.line_no = last_line_no
        self.n_lost = 0  # not declared yet
        self._on_line = on_line
        self._on_lost = on_lost
        self._has_room = has_room
        self._bucket = TokenBucket(0.0, lines_per_s, burst_lines)

    def take(self, stream: int, lines: Iterable[str], now: float) -> None:
        """Record or drop lines of a stream. now: monotonic, s."""
        has_room = self._has_room()
        for line in lines:
            self.line_no += 1
            if not has_room or not self._bucket.allow(now):  # safeguard: line-rate-bounded
                self.n_lost += 1
                continue
            self.declare()
            self._on_line(stream, self.line_no, line)

    def declare(self) -> None:
        """Declare the lines that were dropped since the last call."""
        if self.n_lost:
            count, self.n_lost = self.n_lost, 0
            message = f"{count} lines above the rate limit, or while the journal was nearly full"
            self._on_lost(message, {"lines": count})
