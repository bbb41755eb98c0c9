"""How results are shown: tables for people, csv, json and parquet for programs.

Tables show times in the zone of this machine and say which; csv, json and parquet have UTC. On a terminal a table fits
its width; into a pipe every value is written out on one line. csv and json write bytes as hexadecimal; JSON knows
neither NaN nor infinity, so json has null there, csv `nan`, `inf` and `-inf`.
"""

import contextlib
import csv
import io
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from chiplog.client import Result

TABLE_ROWS_MAX = 10_000  # a table is laid out as a whole, and nobody reads more
_TEXT_WIDTH_MIN = 8
_PIPE_COLUMNS = 1_000_000  # rich wants a width: one that nothing reaches

Rows = Sequence[Mapping[str, Any]]


# -- values -----------------------------------------------------------------------------------------------------------
def utc_text(moment: datetime) -> str:
    """Return a naive UTC time as ISO 8601 with Z."""
    return moment.isoformat() + "Z"


def local(moment: datetime) -> datetime:
    """Return a naive UTC time in the zone of this machine."""
    try:
        return moment.replace(tzinfo=UTC).astimezone()
    except (OverflowError, ValueError):  # 'infinity' has no local time
        return moment.replace(tzinfo=UTC)


def local_text(moment: datetime, precision: str = "auto") -> str:
    """Return a time of this machine's zone, without naming it. precision: as datetime.isoformat, or auto."""
    shown = local(moment).replace(tzinfo=None)
    if precision == "auto":
        precision = "seconds" if not shown.microsecond else "milliseconds"
    return shown.isoformat(sep=" ", timespec=precision)


def zone_of(moments: Iterable[datetime]) -> str:
    """Return the zone's name if it is one for all of these times, else ''."""
    names = {local(moment).strftime("%Z") for moment in moments}
    return names.pop() if len(names) == 1 else ""


def duration_text(seconds: float) -> str:
    """Return 4.2s, 3m05s, 2h07m or 3d04h."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 86_400}d{whole // 3600 % 24:02d}h"


def number_text(value: float) -> str:
    """Return a float with six significant digits, as tables show it."""
    return f"{value:.6g}"


def printable(text: str) -> str:
    """Return text without characters that would steer the terminal, or break the line."""
    return "".join(c if c.isprintable() or c == " " else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return {"\n": "⏎", "\t": "  ", "\r": ""}.get(character, f"\\x{ord(character):02x}")


def plain_value(value: Any) -> Any:
    """Return a value as JSON has it: times as UTC with Z, no NaN, bytes as hexadecimal."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return plain_value(float(value))
    if isinstance(value, datetime):
        return utc_text(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return str(value)


def csv_value(value: Any) -> Any:
    """Return a value as csv has it: nothing for NULL, JSON for lists and structs."""
    if isinstance(value, float | Decimal):
        return str(value)
    plain = plain_value(value)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, list | dict):
        return json.dumps(plain, ensure_ascii=False)
    return "" if plain is None else plain


def table_value(value: Any) -> str:
    """Return a value as a cell of a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime):
        return local_text(value)
    if isinstance(value, list | dict | tuple):
        return printable(json.dumps(plain_value(value), ensure_ascii=False))
    if isinstance(value, bytes):
        return value.hex()
    return printable(str(value))


# -- tables -----------------------------------------------------------------------------------------------------------
def new_table(title: str | None = None) -> "Table":
    """Return an empty table in the house's look."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def cell(text: str | None, style: str = "") -> "Text":
    """Return a text as it stands in a table: nothing in it is markup, or steers the terminal."""
    from rich.text import Text

    return Text(printable(text or ""), style=style)


def print_tables(*tables: Any, file: TextIO | None = None) -> None:
    """Print tables and texts: as wide as the terminal, or as wide as they are into anything else."""
    from rich.console import Console

    target = file if file is not None else sys.stdout
    if target.isatty():
        console = Console(file=target)
        for table in tables:
            console.print(table)
        return
    # Through a buffer, to take off the blanks that pad every line.
    buffer = io.StringIO()
    console = Console(file=buffer, width=_PIPE_COLUMNS, color_system=None, force_terminal=False)
    for table in tables:
        console.print(table)
    for line in buffer.getvalue().splitlines():
        target.write(line.rstrip() + "\n")


def result_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> "Table":
    """Lay out any result: numbers to the right, times in the local zone, which the heading names."""
    from rich.text import Text

    table = new_table()
    shown = [list(row) for row in rows[:TABLE_ROWS_MAX]]
    for number, name in enumerate(columns):
        values = [row[number] for row in shown if row[number] is not None]
        heading, is_number, is_time = printable(name), False, False
        if values and all(isinstance(value, datetime) for value in values):
            is_time, zone = True, zone_of(values)
            heading = f"{heading} ({zone})" if zone else heading
            if not zone:
                for row in shown:
                    if row[number] is not None:
                        row[number] = f"{local_text(row[number])} {local(row[number]).strftime('%Z')}"
        elif values:
            is_number = all(isinstance(value, int | float | Decimal) and value is not True for value in values)
        # What folds is text: a number or a time in two pieces is hard to read.
        table.add_column(
            Text(heading),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number or is_time,
            min_width=min(_TEXT_WIDTH_MIN, len(heading)) if not is_number else None,  # never squeezed to nothing
        )
    for row in shown:
        table.add_row(*(Text(table_value(value)) for value in row))
    return table


# -- files and pipes --------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def target_of(path: str | None) -> Iterator[TextIO]:
    """Give standard output, or a file that appears under its name once it is complete."""
    if path is None:
        yield sys.stdout
        return
    with replaced(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as target:
        yield target


@contextlib.contextmanager
def replaced(path: str) -> Iterator[str]:
    """Give the name of a new file beside `path`, and move it there at the end; remove it after an error."""
    directory = os.path.dirname(os.path.abspath(path))
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".chiplog-", dir=directory)
    except OSError as error:
        raise click.UsageError(f"file {path!r} cannot be written: {error.strerror}; check its directory") from error
    os.close(descriptor)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp keeps it private; a file that was asked for follows the umask
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], target: TextIO) -> None:
    """Write csv with a header line."""
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([csv_value(value) for value in row])


def write_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], target: TextIO) -> None:
    """Write a list of objects, one to a line."""
    separator = "[\n"
    for row in rows:
        item = {name: plain_value(value) for name, value in zip(columns, row, strict=True)}
        target.write(separator + json.dumps(item, ensure_ascii=False))
        separator = ",\n"
    target.write("[]\n" if separator == "[\n" else "\n]\n")


def write_parquet(result: "Result", path: str) -> None:
    """Write a parquet file."""
    with replaced(path) as temporary:
        result.relation().write_parquet(temporary)


def write_result(result: "Result", form: str, path: str | None) -> None:
    """Write a query's result in one of the forms table, csv, json and parquet."""
    if form == "parquet":
        assert path is not None
        write_parquet(result, path)
        return
    with target_of(path) as target:
        if form == "csv":
            write_csv(result.columns, result.tuples(), target)
        elif form == "json":
            write_json(result.columns, result.tuples(), target)
        else:
            rows = result.tuples()
            print_tables(result_table(result.columns, rows), file=target)
            if len(rows) > TABLE_ROWS_MAX:
                more = len(rows) - TABLE_ROWS_MAX
                click.echo(f"… and {more} more rows; use --format csv to have all", err=True)


# -- lines of the console ---------------------------------------------------------------------------------------------
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


def console_text(line: str, keep_colours: bool) -> str:
    """Return a line that a training printed without what would steer the terminal; colours stay if asked."""
    parts = _COLOUR.split(line)
    colours = [*_COLOUR.findall(line), ""] if keep_colours else [""] * len(parts)
    text = "".join(
        "".join(c for c in _SEQUENCE.sub("", part) if c.isprintable() or c == "\t") + colour
        for part, colour in zip(parts, colours, strict=True)
    )
    return text + "\x1b[0m" if keep_colours and len(parts) > 1 else text
