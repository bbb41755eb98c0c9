"""Fold what progress bars and live displays redraw: each row of the screen becomes one line, with its last state. Pure.

A row is held while the cursor may return to it. It becomes a line when the cursor is below it and

- a line without any control sequence has followed, and the cursor has not moved up for `REDRAW_S`; or
- it was not drawn for `SETTLE_S`, or for `REDRAW_S` within the height that the cursor has moved up before; or
- it is more than a screenful above the cursor, or the stream ends.

Sequences are those of ECMA-48. Colours (SGR) are kept, all other sequences are removed. Rows have no width: a text that
a terminal would wrap is one line.
"""

import re
from itertools import groupby

from chiplog_schemas.limits import CONSOLE_LINE_CHARS_MAX

SETTLE_S = 1.0  # longer than the pause between two writes of one redraw
REDRAW_S = 10.0  # of displays that are redrawn; they pause while the training holds the GIL
ROWS_MAX = 60  # a screenful; displays do not move up further than the height of the terminal
_COLUMNS_MAX = CONSOLE_LINE_CHARS_MAX + 1  # one more than a line may have, so that truncation is marked
_COLORS_MAX = 8  # sequences in force for one character; a reset ends all
_DIGITS_MAX = 9  # of a number in a sequence; larger ones are beyond every screen
_SEQUENCE_CHARS_MAX = 4_096  # of an unfinished sequence: a hyperlink's address is the longest
_TOKEN = re.compile(
    r"(?P<text>[^\x1b\r\n\x08]+)|(?P<newline>\r?\n)|(?P<return>\r(?!\Z))|(?P<back>\x08+)"
    r"|\x1b\[(?P<private>[<=>?]?)(?P<numbers>[0-9;:]*)[ -/]*(?P<command>[@-~])"  # CSI
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC and other strings
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # other escapes
)
_UNFINISHED = re.compile(r"\r\Z|\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)\Z")


class _Row:
    """One row of the screen: a character and its colours per column."""

    __slots__ = ("characters", "colors", "drawn_at", "has_ended", "is_plain", "starts_over")

    def __init__(self, now: float) -> None:
        self.characters: list[str] = []
        self.colors: list[str] = []
        self.drawn_at = now
        self.has_ended = False  # a line end was written in this row
        self.is_plain = True  # no return, and nothing in it was overwritten or erased
        self.starts_over = False  # after a return: the next text replaces the row

    def erase(self, first: int = 0, last: int = _COLUMNS_MAX) -> None:
        n_left = max(0, min(last, len(self.characters)) - first)
        if last >= len(self.characters):
            del self.characters[first:], self.colors[first:]
        else:
            self.characters[first:last], self.colors[first:last] = " " * n_left, [""] * n_left
        self.is_plain = self.starts_over = False

    def line(self) -> str | None:
        """Return the row as a line; None if it is none, or was erased."""
        text = "".join(self.characters)
        if not self.is_plain:
            text = text.rstrip()
        if not text:
            return "" if self.has_ended and self.is_plain else None
        if not any(self.colors):
            return text
        colored, pieces = zip(text, self.colors, strict=False), []
        for color, group in groupby(colored, key=lambda pair: pair[1]):
            piece = "".join(character for character, _ in group)
            pieces.append(f"{color}{piece}\x1b[0m" if color else piece)
        return "".join(pieces)


class Screen:
    """The last rows of one stream, and the cursor. `now`: seconds of any clock that does not go back."""

    def __init__(self, now: float) -> None:
        self._rows = [_Row(now)]
        self._at, self._column = 0, 0
        self._colors: tuple[str, ...] = ()
        self._color = ""
        self._unfinished = ""  # the begin of a sequence, or of a line end
        self._height = 0  # how far above the last row the cursor has been
        self._moved_up_at = float("-inf")
        self._is_live = False  # the cursor is hidden, as displays do while they redraw
        self._n_plain = 0  # rows up to the last line that settles the rows above it

    @property
    def is_plain(self) -> bool:
        """Return True if the cursor is in a new empty row, nothing is held, and no display is redrawn."""
        row = self._rows[0]
        is_empty = len(self._rows) == 1 and not row.characters and row.is_plain
        return is_empty and not (self._column or self._unfinished or self._is_live or self._color)

    def feed(self, text: str, now: float) -> list[str]:
        """Draw a text; return the lines that became final."""
        text = self._unfinished + text
        self._unfinished = ""
        lines: list[str] = []
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                if len(text) - at <= _SEQUENCE_CHARS_MAX and _UNFINISHED.match(text, at):
                    self._unfinished = text[at:]
                    break
                at += 1  # not a sequence: leave its first character out
                continue
            at = token.end()
            kind = token.lastgroup
            if kind == "text":
                self._write(token.group(), now)
            elif kind == "newline":
                self._end_line(now)
                lines += self.settle(now)  # before a sequence that follows moves up or erases
            elif kind == "return":
                self._column = 0
                self._row.starts_over, self._row.is_plain = bool(self._row.characters), False
            elif kind == "back":
                self._column = max(0, self._column - len(token.group()))
            elif kind == "command":
                self._obey(token["private"], token["numbers"], token["command"], now)
        return lines + self.settle(now)

    def settle(self, now: float) -> list[str]:
        """Return the lines that became final by `now`."""
        n_rows = 0
        while n_rows < self._at and self._is_settled(n_rows, now):
            n_rows += 1
        return self._take(n_rows)

    def flush(self) -> list[str]:
        """Return all rows as lines, and clear the screen."""
        self._at = len(self._rows)
        lines = self._take(len(self._rows))
        self._rows, self._at, self._column, self._is_live = [_Row(0.0)], 0, 0, False
        return lines

    def _is_settled(self, row: int, now: float) -> bool:
        if row < self._n_plain or row < len(self._rows) - ROWS_MAX:
            return True
        is_redrawn = len(self._rows) - 1 - row <= self._height or self._is_live
        return now - self._rows[row].drawn_at >= (REDRAW_S if is_redrawn else SETTLE_S)

    def _take(self, n_rows: int) -> list[str]:
        taken, self._rows = self._rows[:n_rows], self._rows[n_rows:]
        self._at -= n_rows
        self._n_plain = max(0, self._n_plain - n_rows)
        return [line for row in taken if (line := row.line()) is not None]

    @property
    def _row(self) -> _Row:
        return self._rows[self._at]

    def _write(self, text: str, now: float) -> None:
        row, at = self._row, self._column
        if row.starts_over:
            row.erase()
        text = text[: max(0, _COLUMNS_MAX - at)]
        n_missing = at - len(row.characters)
        if n_missing > 0:
            row.characters += " " * n_missing
            row.colors += [""] * n_missing
        elif n_missing < 0:
            row.is_plain = False
        row.characters[at : at + len(text)] = text
        row.colors[at : at + len(text)] = [self._color] * len(text)
        row.drawn_at = now
        self._column += len(text)

    def _end_line(self, now: float) -> None:
        row = self._row
        row.has_ended, row.starts_over = True, False
        is_last = self._at == len(self._rows) - 1
        is_redrawn = self._is_live or now - self._moved_up_at < REDRAW_S
        if is_last and row.is_plain and row.characters and not is_redrawn:
            self._n_plain = self._at + 1
            self._height = 0
        self._move_to(self._at + 1, now)
        self._column = 0

    def _move_to(self, row: int, now: float) -> None:
        """Move the cursor to a row. Rows that it passes upwards are about to be drawn again."""
        row = max(0, row)
        if row < self._at:
            self._height = max(self._height, min(ROWS_MAX, len(self._rows) - 1 - row))
            self._moved_up_at = now
            for passed in self._rows[row:]:
                passed.drawn_at = now
        while row >= len(self._rows):
            self._rows.append(_Row(now))
        self._at = row

    def _obey(self, private: str, numbers: str, command: str, now: float) -> None:
        if private:
            if numbers == "25" and command in "hl":
                self._is_live = command == "l"
            return
        if command == "m":
            self._set_color(numbers)
            return
        given = [int(number[:_DIGITS_MAX] or 0) for number in numbers.replace(":", ";").split(";")]
        n = min(max(1, given[0]), ROWS_MAX)
        if command in "AF":
            self._move_to(self._at - n, now)
        elif command in "BE":
            self._move_to(min(self._at + n, max(self._at, ROWS_MAX - 1)), now)
        elif command in "Hf":
            self._move_to(n - 1, now)
            self._moved_up_at, self._height = now, ROWS_MAX  # also if the rows above are lines already
        elif command in "JK":
            self._erase(command, given[0], now)
        self._move_column(command, given)

    def _move_column(self, command: str, given: list[int]) -> None:
        if command in "EF":
            self._column = 0
        elif command in "CD":
            self._column += max(1, given[0]) * (1 if command == "C" else -1)
        elif command == "G":
            self._column = given[0] - 1
        elif command in "Hf":
            self._column = (given[1] if len(given) > 1 else 1) - 1
        else:
            return
        self._column = min(max(0, self._column), _COLUMNS_MAX)
        self._row.starts_over = False

    def _erase(self, command: str, part: int, now: float) -> None:
        """Erase in the row (K) or in the screen (J): after the cursor (0), before it (1), or everything."""
        row, column = self._row, self._column
        row.erase(*((column,) if part == 0 else (0, column + 1) if part == 1 else ()))
        row.drawn_at = now
        if command == "J":
            for other in (
                self._rows[self._at + 1 :] if part == 0 else self._rows[: self._at] if part == 1 else self._rows
            ):
                other.erase()

    def _set_color(self, numbers: str) -> None:
        if numbers.strip("0;:") == "":
            self._colors = ()
        else:
            self._colors = (*self._colors, f"\x1b[{numbers}m")[-_COLORS_MAX:]
        self._color = "".join(self._colors)
