"""Lay out results as tables for people; the headings name the zone of times.

On a terminal a table fits the width, and a list of many numbers becomes one line (fitted_table.py). Into a pipe every
value is written in full.
"""

import io
import itertools
import json
import math
import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TextIO

from chiplog_cli.tables.format_values import UTC_ZONE, Zone, plain_value, printable
from chiplog_cli.tables.plain_table import Column

if TYPE_CHECKING:
    from chiplog_cli.tables.fitted_table import Cell, Sheet

TABLE_ROWS_MAX = 10_000  # a table is laid out as a whole; more is not readable
_NUMBERS_SHOWN = 8  # of a list on a terminal; a longer one is summed up in one line
_BARS_SHOWN = 32  # of a histogram: more bins than that are added up
BARS = "·▁▂▃▄▅▆▇█"
_PIPE_COLUMNS = 1_000_000  # rich needs a width: nothing is wider
NULL = "NULL"  # a missing value, in tables; an empty text is an empty cell, and the text NULL is in quotes


def plain_cell(text: str | None, style: str = "") -> "Cell":
    """Return a text for a table, without markup and terminal control."""
    from chiplog_cli.tables.fitted_table import Cell

    return Cell(printable(text or ""), style=style)


def print_tables(*tables: Any, file: TextIO | None = None) -> None:
    """Print tables and texts, fitted to a terminal, or in full width into anything else.

    tables: `Sheet`s, texts, and anything that rich prints.
    """
    target = file if file is not None else sys.stdout
    if not target.isatty():
        for table in tables:
            target.writelines(f"{line}\n" for line in _lines(table))
        return
    from rich.console import Console

    console = Console(file=target)
    for table in tables:
        console.print(table, markup=False)  # a name such as [/loss] is text


def _lines(table: Any) -> Iterable[str]:
    """Return the lines of a table without blanks at their ends."""
    if isinstance(table, str):
        return [table]
    from chiplog_cli.tables.fitted_table import Sheet

    if isinstance(table, Sheet):
        return table.lines()
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=_PIPE_COLUMNS, color_system=None, force_terminal=False).print(table)
    return [line.rstrip() for line in buffer.getvalue().splitlines()]


def result_cells(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    zone: Zone = UTC_ZONE,
    wall: Collection[str] = (),
    *,
    is_short: bool = False,
) -> tuple[list[Column], list[tuple[str | None, ...]]]:
    """Return the columns and the texts of any result; None for NULL. Times are in a zone that the heading names.

    wall: columns of times that the query itself has converted to a zone; they are shown unchanged. is_short: see
    `table_value`.
    """
    texts: list[list[str | None]] = []
    headings = []
    for number, name in enumerate(columns):
        values = [row[number] for row in rows]
        known = [value for value in values if value is not None]
        heading, is_time = printable(name), bool(known) and all(isinstance(value, datetime) for value in known)
        of = UTC_ZONE if name in wall else zone
        cells = [None if value is None else table_value(value, zone=of, is_short=is_short) for value in values]
        if is_time and name not in wall:
            named = zone.name(known)
            heading = f"{heading} ({named})" if named else heading
            if not named:  # summer and winter
                cells = [
                    text if value is None else f"{text} {zone.shown(value).strftime('%Z')}"
                    for text, value in zip(cells, values, strict=True)
                ]
        is_number = bool(known) and all(map(_is_number, known))
        is_whole = is_time or any(is_short and _is_long(value) for value in known)
        is_name = not any(" " in text for text in cells if text is not None)
        headings.append(Column(heading, is_number=is_number, is_whole=is_whole, is_name=is_name))
        texts.append(cells)
    return headings, list(zip(*texts, strict=True))


def null_filled(rows: Iterable[Sequence[str | None]]) -> list[list[str]]:
    """Return rows with the text for NULL where a cell is None."""
    return [[NULL if cell is None else cell for cell in row] for row in rows]


def result_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    zone: Zone = UTC_ZONE,
    wall: Collection[str] = (),
) -> "Sheet":
    """Lay out any result for a terminal; a long list of numbers is one line. Arguments as of `result_cells`."""
    from chiplog_cli.tables.fitted_table import Sheet

    headings, texts = result_cells(columns, rows, zone, wall, is_short=True)
    sheet = Sheet(headings, has_blocks=True)
    for row in texts:
        sheet.add(*(plain_cell(NULL, "dim italic") if cell is None else cell for cell in row))
    return sheet


def table_value(value: Any, *, zone: Zone = UTC_ZONE, is_short: bool = False) -> str:
    """Return a value as a cell of a table. is_short: a list of many numbers as one line."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime):
        return zone.text(value)
    if is_short and _is_long(value):
        return _numbers_text(value)
    if isinstance(value, list | dict | tuple):
        return printable(json.dumps(plain_value(value, zone, is_json=False), ensure_ascii=False))
    if isinstance(value, bytes):
        return value.hex()
    text = printable(str(value))
    return f'"{text}"' if text == NULL else text  # safeguard: text-differs-from-null


def _is_long(value: Any) -> bool:
    return isinstance(value, list) and len(value) > _NUMBERS_SHOWN and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _numbers_text(values: list[Any]) -> str:
    """Return one line for many numbers: bars for counts, else the first and the last number.

    Counts are whole numbers that do not grow from each to the next, as edges of bins do.
    """
    is_whole = all(math.isfinite(value) and value >= 0 and value == int(value) for value in values)
    if is_whole and any(values) and any(left >= right for left, right in itertools.pairwise(values)):
        counts = [int(value) for value in values]
        return f"{bars(counts)} {len(counts)} counts, sum {sum(counts)}"
    return f"{values[0]!r} … {values[-1]!r} ({len(values)} numbers)"


def bars(counts: Sequence[int]) -> str:
    """Return counts as a line of bars; more than 32 are added up in groups. Only 0 is a dot."""
    together = -(-len(counts) // _BARS_SHOWN)
    sums = [sum(counts[at : at + together]) for at in range(0, len(counts), together)]
    highest = max(sums) or 1
    return "".join(BARS[-(-count * (len(BARS) - 1) // highest)] for count in sums)
