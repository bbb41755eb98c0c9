"""Tables as plain lines: aligned columns for a pipe or a file, and Markdown. No value is cut, folded or left out."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NAME_WIDTH_MAX = 64  # of a column of names: a longer one costs its own row, and pads no other
GAP = 2  # blanks between two columns
# What Markdown would read as markup: also in the middle of a word, but an underscore only beside one.
_MARKUP = re.compile(r"[\\`*<\[~|&]|(?<!\w)_|_(?!\w)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column. is_number: right-aligned and never folded. is_whole: never folded.

    is_name: folded only beyond 40 characters. drop: order of omission from a narrow table, the lowest first; 0: never.

    width_max: a wider cell folds on a terminal, and stands out in a pipe, so that it pads no other row; 0: unbounded.
    """

    name: str
    is_number: bool = False
    is_whole: bool = False
    is_name: bool = False
    drop: int = 0
    width_max: int = 0


def plain_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, has_header: bool = True) -> Iterator[str]:
    """Yield a heading, a rule, and a line per row, without blanks at their ends."""
    heading = [column.name for column in columns]
    shown = [heading, *rows] if has_header else rows
    widths = [_width(column, [cell_width(row[n]) for row in shown]) for n, column in enumerate(columns)]
    aligned = (
        (" " * GAP).join(map(_aligned, row, widths, (column.is_number for column in columns))).rstrip() for row in shown
    )
    if has_header:
        yield next(aligned)
        yield "─" * (sum(widths) + GAP * (len(columns) - 1))
    yield from aligned


def markdown_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table in GitHub's Markdown; text stays text."""
    escaped = [[_escaped(column.name) for column in columns], *([_escaped(cell) for cell in row] for row in rows)]
    widths = [max(3, *(cell_width(row[number]) for row in escaped)) for number in range(len(columns))]
    numbers = [column.is_number for column in columns]
    for number, row in enumerate(escaped):
        yield f"| {' | '.join(map(_aligned, row, widths, numbers))} |"
        if number == 0:
            rules = ("-" * (width - 1) + (":" if right else "-") for width, right in zip(widths, numbers, strict=True))
            yield f"| {' | '.join(rules)} |"


def _width(column: Column, widths: Sequence[int]) -> int:
    """Return the width of a column. A name that is much longer than the others stands out, and pads no other row."""
    widest = max(widths, default=0)
    if not 0 < column.width_max < widest:
        return widest
    # safeguard: long-name-pads-none
    return max((width for width in widths if width <= column.width_max), default=column.width_max)


def cell_width(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # 10 ms; only wide characters need it

    return cell_len(text)


def _aligned(text: str, width: int, is_right: bool) -> str:
    blanks = " " * (width - cell_width(text))
    return blanks + text if is_right else text + blanks


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda found: "\\" + found[0], text)
