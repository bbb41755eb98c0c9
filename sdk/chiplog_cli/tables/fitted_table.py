"""Tables that fit the terminal: numbers, times and states are never cut, and a name breaks only at its separators.

A table that is too wide folds its texts first. Then it omits columns that may be omitted, and lists them below. If that
is not enough, or if cells would become tall, it becomes one block per row.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from chiplog_cli.tables.plain_table import GAP, Column, markdown_lines, plain_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderResult
    from rich.containers import Lines

__all__ = ["Cell", "Column", "Sheet", "fold"]

_PIECE_MAX = 40  # characters of a word that a column does not break; a hash or a token may be longer
# After a separator inside a word, but neither in 1.5, 1e-05, 12:30 and 1,000 nor before the 5 of -5.
_BREAK = re.compile(r"(?<=[^\W_][-_/=])(?<!\d[eE]-)|(?<=[^\W_][.:,;])(?!\d)|(?<=\s)(?=\S)")


class Cell(Text):
    """A text that folds at spaces and separators, and inside a word only if the word is longer than the column.

    Attributes:
        lines_max: Lines of it on a terminal; a longer text ends with an ellipsis. 0: unbounded.
    """

    lines_max = 0

    def __rich_measure__(self, console: "Console", options: "ConsoleOptions") -> Measurement:
        """Return the width of the longest piece, and of the longest line."""
        lines = self.plain.split("\n")
        least = max((cell_len(piece.rstrip()) for line in lines for piece in _BREAK.split(line)), default=0)
        most = max(map(cell_len, lines))
        return Measurement(min(least, _PIECE_MAX), most).with_maximum(options.max_width)

    def wrap(
        self,
        console: "Console",
        width: int,
        *,
        justify: "JustifyMethod | None" = None,
        overflow: "OverflowMethod | None" = None,
        tab_size: int = 8,
        no_wrap: bool | None = None,
    ) -> "Lines":
        """Return the lines of this text at a width."""
        lines = [line for text in self.plain.split("\n") for line in fold(text, width)]
        if 0 < self.lines_max < len(lines):
            lines[self.lines_max - 1 :] = [set_cell_size(lines[self.lines_max - 1], width - 1).rstrip() + "…"]
        folded = Text("\n".join(lines), self.style)
        return folded.wrap(console, width, justify=justify, overflow=overflow, tab_size=tab_size, no_wrap=no_wrap)


def fold(text: str, width: int) -> list[str]:
    """Return the lines of one line of text, each at most `width` cells wide."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for piece in _BREAK.split(text):
        if cell_len(lines[-1]) + cell_len(piece.rstrip()) <= width:
            lines[-1] += piece
        elif cell_len(piece.rstrip()) <= width:
            lines.append(piece)
        else:
            lines += chop_cells(piece, width)
    return [line.rstrip() for line in lines if line.strip()]


class Sheet:
    """A table that rich prints in the form that fits. caption: a line below it.

    has_blocks: tall rows become blocks too.
    """

    def __init__(
        self,
        columns: Iterable[Column],
        title: str | None = None,
        *,
        has_header: bool = True,
        has_blocks: bool = False,
    ) -> None:
        self.columns = list(columns)
        self.rows: list[list[Text]] = []
        self.caption = ""
        self.is_partial = False  # rows were omitted
        self._title = title
        self._has_header = has_header
        self._has_blocks = has_blocks

    def add(self, *cells: str | Text) -> None:
        """Add a row."""
        self.rows.append([cell if isinstance(cell, Text) else Cell(cell) for cell in cells])

    def lines(self) -> Iterator[str]:
        """Yield the whole table as plain lines, for a pipe or a file."""
        if self._title:
            yield self._title
        yield from plain_lines(self.columns, self._texts(), has_header=self._has_header)
        if self.caption:
            yield self.caption

    def markdown(self) -> Iterator[str]:
        """Yield the whole table in Markdown."""
        if self._title:
            yield from (f"### {self._title}", "")
        yield from markdown_lines(self.columns, self._texts())
        if self.caption:
            yield from ("", self.caption)

    def _texts(self) -> list[list[str]]:
        return [[cell.plain for cell in row] for row in self.rows]

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield what is printed."""
        spans = [self._span(number, console, options) for number in range(len(self.columns))]
        kept = self._kept(spans, options.max_width)
        widths = _shrunk([spans[number] for number in kept], options.max_width)
        if self._title:
            yield Text(self._title, style="bold")
        if widths is None or (self._has_blocks and self._are_blocks_shorter(widths, options.max_width)):
            yield from self._blocks()
        else:
            yield self._table(kept, widths)
        lines = [self.caption] if self.caption else []
        if widths is not None and len(kept) < len(self.columns):
            gone = [column.name for number, column in enumerate(self.columns) if number not in kept]
            lines.append(f"+{len(gone)} column{'s' * (len(gone) > 1)} in a wider terminal: {', '.join(gone)}")
        for line in lines:
            yield Text(line, style="dim italic")

    def _span(self, number: int, console: "Console", options: "ConsoleOptions") -> tuple[int, int]:
        """Return the minimum width of a column, and the width at which nothing in it folds."""
        column = self.columns[number]
        unbounded = options.update_width(max(options.max_width, 1 << 20))
        found = [row[number].__rich_measure__(console, unbounded) for row in self.rows]
        if self._has_header:
            found.append(Cell(column.name).__rich_measure__(console, unbounded))
        most = max((measured.maximum for measured in found), default=0)
        if column.is_number or column.is_whole:
            return most, most  # safeguard: number-never-cut
        if column.width_max:
            most = min(most, column.width_max)  # safeguard: long-name-costs-its-row
        least = most if column.is_name else max((measured.minimum for measured in found), default=0)
        return min(least, _PIECE_MAX), most

    def _kept(self, spans: Sequence[tuple[int, int]], width: int) -> list[int]:
        """Return the numbers of the columns that stay."""
        kept = list(range(len(self.columns)))
        order = sorted((number for number in kept if self.columns[number].drop), key=lambda n: self.columns[n].drop)
        for number in order:
            if sum(spans[n][0] for n in kept) + GAP * (len(kept) - 1) <= width:
                break
            kept.remove(number)
        return kept

    def _are_blocks_shorter(self, widths: Sequence[int], width: int) -> bool:
        beside = max(1, width - GAP - max((cell_len(column.name) for column in self.columns), default=0))
        table = blocks = 0
        for row in self.rows:
            lengths = [cell.cell_len for cell in row]
            table += max((-(-length // max(1, room)) for length, room in zip(lengths, widths, strict=True)), default=1)
            blocks += 1 + sum(max(1, -(-length // beside)) for length in lengths)
        return table > blocks

    def _table(self, kept: Sequence[int], widths: Sequence[int]) -> Table:
        from rich import box

        table = Table(
            box=box.SIMPLE_HEAD,
            header_style="bold",
            pad_edge=False,
            show_edge=False,
            show_header=self._has_header,
            padding=(0, 1, 0, 0),
        )
        for number, width in zip(kept, widths, strict=True):
            column = self.columns[number]
            justify: JustifyMethod = "right" if column.is_number else "left"
            table.add_column(Cell(column.name), justify=justify, overflow="fold", width=width)
        for row in self.rows:
            table.add_row(*(row[number] for number in kept))
        return table

    def _blocks(self) -> Iterable[Any]:
        """Yield one block per row: a line for each column."""
        for number, row in enumerate(self.rows, 1):
            yield Text(f"-- {number} " + "-" * 20, style="dim")
            grid = Table.grid(padding=(0, GAP, 0, 0))
            grid.add_column(style="bold", overflow="fold")
            grid.add_column(overflow="fold")
            for column, cell in zip(self.columns, row, strict=True):
                grid.add_row(Cell(column.name), cell)  # safeguard: long-heading-not-cut
            yield grid


def _shrunk(spans: Sequence[tuple[int, int]], width: int) -> list[int] | None:
    """Return column widths that fit, shrinking the widest first; None if their minimum widths do not fit."""
    space = width - GAP * (len(spans) - 1)
    if sum(least for least, _ in spans) > space:
        return None
    widths = [min(most, space) for _, most in spans]
    while sum(widths) > space:
        _, number = max((wide, number) for number, wide in enumerate(widths) if wide > spans[number][0])
        widths[number] -= 1
    return widths
