"""From what a process writes to the lines that are kept: split, progress bars folded, cut, and counted. Pure."""

from chiplog_schemas.limits import CONSOLE_BURST_LINES, CONSOLE_LINE_CHARS_MAX, CONSOLE_LINES_PER_S

# Of a line that has not ended: as many characters as are kept and one, so that what is cut is marked.
_PARTIAL_BYTES_MAX = 4 * (CONSOLE_LINE_CHARS_MAX + 1)


class LineSplitter:
    """Bytes of one stream in, its complete lines out, as bytes without their end."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that became complete. `shown` makes texts of them."""
        *complete, partial = (self._partial + data).split(b"\n")
        if b"\r" in partial[:-1]:
            # A return at the very end stays: what is written next stands in place of this, or ends it.
            partial = partial.rstrip(b"\r").rpartition(b"\r")[2] + (b"\r" if partial.endswith(b"\r") else b"")
        self._partial = partial[:_PARTIAL_BYTES_MAX]
        return complete

    def flush(self) -> list[bytes]:
        """Return the line that has no end, if there is one, and begin anew."""
        partial, self._partial = self._partial, b""
        return [partial] if partial else []


def decode_line(line: bytes) -> str:
    """Return a line as it is kept. Bytes that are no UTF-8 stay what they are, as Python's surrogateescape has them."""
    return truncate(collapse_overwrites(line.decode("utf-8", "surrogateescape")))


def collapse_overwrites(line: str) -> str:
    """Keep of a progress bar, which returns to the start of its line, or steps back in it, what stood there last."""
    line = line.rstrip("\r").rpartition("\r")[2]
    if "\b" not in line:
        return line
    cells: list[str] = []
    at = 0
    for character in line:
        if character == "\b":
            at = max(0, at - 1)
        else:
            cells[at : at + 1] = [character]
            at += 1
    return "".join(cells)


def truncate(line: str) -> str:
    """Cut a line that is too long, and mark it."""
    return line if len(line) <= CONSOLE_LINE_CHARS_MAX else line[: CONSOLE_LINE_CHARS_MAX - 1] + "…"


class TokenBucket:
    """So many lines per second, after a burst; `allowance` is how many there may be at once just now."""

    def __init__(
        self, now: float, lines_per_s: float = CONSOLE_LINES_PER_S, burst_lines: float = CONSOLE_BURST_LINES
    ) -> None:
        self.allowance = float(burst_lines)
        self._lines_per_s = lines_per_s
        self._burst_lines = burst_lines
        self._refilled_at = now

    def allow(self, now: float) -> bool:
        """Tell whether there may be one more line, and count it."""
        self.allowance = min(self._burst_lines, self.allowance + (now - self._refilled_at) * self._lines_per_s)
        self._refilled_at = now
        if self.allowance < 1:
            return False
        self.allowance -= 1
        return True
