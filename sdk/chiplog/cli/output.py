"""Write results: tables for people; csv, json, parquet and arrow for programs.

Times are UTC, or with --local in this machine's zone; the headings of tables name the zone. On a terminal a table fits
the width, and a list of many numbers becomes one line (fitted_table.py). Into a pipe every value is written in full.
csv and json write bytes as hexadecimal. JSON has neither NaN nor infinity: json has null there, csv `nan`, `inf` and
`-inf`.
"""

import contextlib
import csv
import io
import itertools
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from chiplog.cli.fitted_table import Cell, Sheet
    from chiplog.query.client import Result

TABLE_ROWS_MAX = 10_000  # a table is laid out as a whole; more is not readable
_EXACT_MAX = 1e15  # a float holds every whole number up to here and a little beyond
_NUMBERS_SHOWN = 8  # of a list on a terminal; a longer one is summed up in one line
_BARS_SHOWN = 32  # of a histogram: more bins than that are added up
_BARS = "·▁▂▃▄▅▆▇█"
_PIPE_COLUMNS = 1_000_000  # rich needs a width: nothing is wider

FORMATS = ("table", "csv", "json", "parquet", "arrow")
# The format of a file by its suffix. txt is the table as written into a pipe.
SUFFIXES = {
    **{form: form for form in FORMATS if form != "table"},
    "txt": "table",
    "feather": "arrow",
    "pq": "parquet",
}


# -- values -----------------------------------------------------------------------------------------------------------
class Zone:
    """Formats times in UTC or in this machine's zone. Times are naive UTC, as in query results."""

    def __init__(self, *, is_local: bool) -> None:
        self.is_local = is_local

    def shown(self, moment: datetime) -> datetime:
        """Return a time with its zone."""
        moment = moment.replace(tzinfo=UTC)
        if not self.is_local:
            return moment
        try:
            return moment.astimezone()
        except (OverflowError, ValueError):  # 'infinity' has no local time
            return moment

    def text(self, moment: datetime, precision: str = "auto") -> str:
        """Return a time without its zone. precision: as datetime.isoformat; auto writes every digit that is not 0."""
        return self.shown(moment).replace(tzinfo=None).isoformat(sep=" ", timespec=precision)

    def name(self, moments: Iterable[datetime]) -> str:
        """Return the zone's name if these times share one, else ''."""
        names = {self.shown(moment).strftime("%Z") for moment in moments}
        return names.pop() if len(names) == 1 else ""

    def stamp(self, moment: datetime, precision: str = "auto", sep: str = "T") -> str:
        """Return ISO 8601: UTC with Z, a local time with its offset."""
        return self.shown(moment).isoformat(sep=sep, timespec=precision).replace("+00:00", "Z")


UTC_ZONE, LOCAL_ZONE = Zone(is_local=False), Zone(is_local=True)


def common_timezone(is_local: bool) -> Zone:
    """Return the zone for --local, else UTC."""
    return LOCAL_ZONE if is_local else UTC_ZONE


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
    """Return a number for the page of a run: whole numbers in full, others with six significant digits."""
    return str(int(value)) if abs(value) < _EXACT_MAX and value == int(value) else f"{value:.6g}"


def printable(text: str) -> str:
    """Return text without characters that would control the terminal or break the line."""
    return "".join(c if c.isprintable() or c == " " else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return {"\n": "⏎", "\t": "  ", "\r": ""}.get(character, f"\\x{ord(character):02x}")


def plain_value(value: Any, zone: Zone = UTC_ZONE) -> Any:
    """Return a value for JSON: times as ISO 8601, no NaN, bytes as hexadecimal."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return plain_value(float(value))
    if isinstance(value, datetime):
        return zone.stamp(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain_value(item, zone) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, zone) for item in value]
    return str(value)


def csv_value(value: Any, zone: Zone = UTC_ZONE) -> Any:
    """Return a value for csv: an empty text for NULL, JSON for lists and structs."""
    if isinstance(value, float | Decimal):
        return str(value)
    plain = plain_value(value, zone)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, list | dict):
        return json.dumps(plain, ensure_ascii=False)
    return "" if plain is None else plain


def decoded(value: Any) -> Any:
    """Decode a JSON text, or a list of JSON texts; return any other value unchanged."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def table_value(value: Any, *, zone: Zone = UTC_ZONE, is_short: bool = False) -> str:
    """Return a value as a cell of a table. is_short: a list of many numbers as one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime):
        return zone.text(value)
    if is_short and _is_long(value):
        return _numbers_text(value)
    if isinstance(value, list | dict | tuple):
        return printable(json.dumps(plain_value(value, zone), ensure_ascii=False))
    if isinstance(value, bytes):
        return value.hex()
    return printable(str(value))


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
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // highest)] for count in sums)


# -- tables -----------------------------------------------------------------------------------------------------------
def plain_cell(text: str | None, style: str = "") -> "Cell":
    """Return a text for a table, without markup and terminal control."""
    from chiplog.cli.fitted_table import Cell

    return Cell(printable(text or ""), style=style)


def print_tables(*tables: Any, file: TextIO | None = None) -> None:
    """Print tables and texts, fitted to a terminal, or in full width into anything else."""
    from rich.console import Console

    target = file if file is not None else sys.stdout
    if target.isatty():
        console = Console(file=target)
        for table in tables:
            console.print(table)
        return
    # Through a buffer, to remove the trailing blanks of every line.
    buffer = io.StringIO()
    console = Console(file=buffer, width=_PIPE_COLUMNS, color_system=None, force_terminal=False)
    for table in tables:
        console.print(table)
    for line in buffer.getvalue().splitlines():
        target.write(line.rstrip() + "\n")


def result_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    zone: Zone = UTC_ZONE,
    wall: Collection[str] = (),
    *,
    is_short: bool = False,
) -> "Sheet":
    """Lay out any result: numbers right-aligned, times in a zone that the heading names.

    wall: columns of times that the query itself has converted to a zone; they are shown unchanged.
    """
    from chiplog.cli.fitted_table import Column, Sheet

    shown = rows[:TABLE_ROWS_MAX]
    texts: list[list[str]] = []
    headings = []
    for number, name in enumerate(columns):
        values = [row[number] for row in shown]
        known = [value for value in values if value is not None]
        heading, is_time = printable(name), bool(known) and all(isinstance(value, datetime) for value in known)
        of = UTC_ZONE if name in wall else zone
        cells = [table_value(value, zone=of, is_short=is_short) for value in values]
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
        is_name = not any(" " in text for text in cells)
        headings.append(Column(heading, is_number=is_number, is_whole=is_whole, is_name=is_name))
        texts.append(cells)
    sheet = Sheet(headings, has_blocks=True)
    for row in zip(*texts, strict=True):
        sheet.add(*row)
    return sheet


# -- files and pipes --------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """Yield standard output, or a file that is renamed to `path` once it is complete."""
    if path is None:
        yield sys.stdout
        return
    with atomic_output(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as target:
        yield target


@contextlib.contextmanager
def atomic_output(path: str) -> Iterator[str]:
    """Yield the name of a new file beside `path`, and rename it at the end; remove it after an error."""
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
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp makes it private; the requested file follows the umask
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_csv(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    target: TextIO,
    zone: Zone = UTC_ZONE,
    wall: Collection[str] = (),
) -> None:
    """Write csv with a header line. wall: columns of times that are in the query's own zone."""
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(columns)
    walls = [name in wall for name in columns]
    for row in rows:
        writer.writerow([csv_value(_unzoned(v) if w else v, zone) for v, w in zip(row, walls, strict=True)])


def write_json(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    target: TextIO,
    zone: Zone = UTC_ZONE,
    wall: Collection[str] = (),
    encoded: Collection[str] = (),
) -> None:
    """Write a list of objects, one per line. encoded: columns of JSON, which are decoded; wall: as in write_csv."""
    separator = "[\n"
    for row in rows:
        item = {}
        for name, value in zip(columns, row, strict=True):
            value = _unzoned(value) if name in wall else value
            item[name] = plain_value(decoded(value) if name in encoded else value, zone)
        target.write(separator + json.dumps(item, ensure_ascii=False))
        separator = ",\n"
    target.write("[]\n" if separator == "[\n" else "\n]\n")


def _unzoned(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def write_parquet(result: "Result", path: str) -> None:
    """Write a parquet file."""
    with atomic_output(path) as temporary:
        result.relation().write_parquet(temporary)


def write_arrow(result: "Result", path: str) -> None:
    """Write a file of Arrow's IPC format, which is Feather version 2."""
    from arro3.io import write_ipc

    with atomic_output(path) as temporary:
        write_ipc(result.relation(), temporary)


def write_result(
    result: "Result", form: str, path: str | None, zone: Zone = UTC_ZONE, encoded: Collection[str] = ()
) -> None:
    """Write a query's result in one of FORMATS. encoded: columns of JSON."""
    if form in ("parquet", "arrow"):
        assert path is not None
        (write_parquet if form == "parquet" else write_arrow)(result, path)
        return
    wall = result.wall_times if zone.is_local else ()
    with open_output(path) as target:
        if form == "csv":
            write_csv(result.columns, result.tuples(), target, zone, wall)
        elif form == "json":
            write_json(result.columns, result.tuples(), target, zone, wall, encoded)
        else:
            rows = result.tuples()
            print_tables(result_table(result.columns, rows, zone, wall, is_short=target.isatty()), file=target)
            if len(rows) > TABLE_ROWS_MAX:
                more = len(rows) - TABLE_ROWS_MAX
                click.echo(f"… and {more} more rows; use --format csv for all", err=True)


# -- lines of the console ---------------------------------------------------------------------------------------------
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


def console_text(line: str, keep_colours: bool) -> str:
    """Return a line of a training without terminal control; keep colours if `keep_colours`."""
    parts = _COLOUR.split(line)
    colours = [*_COLOUR.findall(line), ""] if keep_colours else [""] * len(parts)
    text = "".join(
        "".join(c for c in _SEQUENCE.sub("", part) if c.isprintable() or c == "\t") + colour
        for part, colour in zip(parts, colours, strict=True)
    )
    return text + "\x1b[0m" if keep_colours and len(parts) > 1 else text
