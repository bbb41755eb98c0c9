"""Turn what a process writes into the lines to record: split, fold progress bars, truncate. Pure."""

from chiplog_schemas.limits import CONSOLE_LINE_CHARS_MAX

# Of an unterminated line: one character more than is kept, so that truncation is marked.
_PARTIAL_BYTES_MAX = 4 * (CONSOLE_LINE_CHARS_MAX + 1)


class LineSplitter:
    """Split the bytes of one stream into complete lines, as bytes without the line end."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that became complete. `decode_line` makes text of them."""
        *complete, partial = (self._partial + data).split(b"\n")
        if b"\r" in partial[:-1]:
            # Keep a trailing \r: the next text overwrites this line, or is the \n that ends it.
            partial = partial.rstrip(b"\r").rpartition(b"\r")[2] + (b"\r" if partial.endswith(b"\r") else b"")
        self._partial = partial[:_PARTIAL_BYTES_MAX]
        return complete

    def flush(self) -> list[bytes]:
        """Return the unterminated line, if any, and reset."""
        partial, self._partial = self._partial, b""
        return [partial] if partial else []


def decode_line(line: bytes) -> str:
    """Return a line as it is recorded. Bytes that are not UTF-8 are kept by surrogateescape."""
    return truncate(collapse_overwrites(line.decode("utf-8", "surrogateescape")))


def collapse_overwrites(line: str) -> str:
    """Return what a line finally shows, after a progress bar's returns and backspaces."""
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
    """Truncate a line that is too long, and mark the cut."""
    return line if len(line) <= CONSOLE_LINE_CHARS_MAX else line[: CONSOLE_LINE_CHARS_MAX - 1] + "…"
