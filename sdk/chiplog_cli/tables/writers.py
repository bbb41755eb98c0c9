"""Write tables in the formats of `output.py`: to standard output, or to a file that appears complete or not at all."""

import contextlib
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from chiplog_cli.output import BINARY, Output
from chiplog_cli.tables import limited_encoding
from chiplog_cli.tables.format_values import UTC_ZONE, Zone, count_nonfinite, csv_field, csv_value, plain_value
from chiplog_cli.tables.plain_table import markdown_lines, plain_lines
from chiplog_cli.tables.tables import TABLE_ROWS_MAX, null_filled, print_tables, result_cells, result_table
from chiplog_client.results.json_texts import decoded

if TYPE_CHECKING:
    import duckdb
    from rich.text import Text

    from chiplog_cli.tables.fitted_table import Sheet
    from chiplog_client.client import Result
    from chiplog_client.result_stream import ResultStream


_NESTED = (list, dict)
# json.dumps would make one for each row. By whether the target has all characters.
_ENCODERS = {is_all: json.JSONEncoder(ensure_ascii=not is_all) for is_all in (False, True)}


class TerminalText(io.StringIO):
    """Collects what is written to the terminal of this process, in its width and with its colours."""

    def isatty(self) -> bool:
        """Return True: tables are laid out for the terminal."""
        return True


class Rows:
    """A table that comes from no query, with the methods of a query's result."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        types: Mapping[str, str] | None = None,
        wall_times: Collection[str] = (),
    ) -> None:
        self.columns = list(columns)
        self.wall_times = wall_times
        self._types = types or {}  # of columns whose values may all be missing; the others follow from their values
        self._rows = [tuple(row) for row in rows]

    def tuples(self) -> list[tuple[Any, ...]]:
        """Return the rows."""
        return self._rows

    def relation(self) -> "duckdb.DuckDBPyRelation":
        """Return the rows as a relation of a DuckDB in memory. A column of several types, or of JSON, is text."""
        import duckdb

        values, selected = {}, []
        for number, name in enumerate(self.columns):
            column = [row[number] for row in self._rows]
            values[f"c{number}"] = column if name in self._types else _of_one_type(column)
            kind = f"::{self._types[name]}[]" if name in self._types else ""
            quoted = name.replace('"', '""')
            selected.append(f'unnest($c{number}{kind}) AS "{quoted}"')
        return duckdb.connect().sql(f"SELECT {', '.join(selected)}", params=values)


class StreamedRows:
    """The rows of a stream, with the methods of a query's result. They are read once."""

    def __init__(self, stream: "ResultStream") -> None:
        self.columns = stream.columns
        self.wall_times = stream._wall_times
        self._stream = stream

    def tuples(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows."""
        return self._stream.tuples()

    def relation(self) -> "duckdb.DuckDBPyRelation":
        """Return the rows as a relation of a DuckDB in memory."""
        return self._stream._relation()

    def stop(self) -> None:
        """Let the relation end early. Called while another thread reads it."""
        self._stream._stop()


def _of_one_type(values: list[Any]) -> list[Any]:
    kinds = {float if type(value) is int else type(value) for value in values if value is not None}
    if len(kinds) <= 1 and not kinds & {dict, list}:  # the fields of JSON values differ
        return values
    return [None if value is None else str(csv_value(value)) for value in values]


@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """Yield standard output, or a file that is renamed to `path` once it is complete."""
    if path is None:
        yield sys.stdout
        return
    with (
        atomic_output(path) as temporary,
        open(temporary, "w", encoding="utf-8", errors=limited_encoding.NAME, newline="") as target,
    ):
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
) -> int:
    """Write csv with a header line. wall: columns of times that are in the query's own zone.

    Returns the number of NaN and infinite numbers within lists and structs, which are JSON.
    """
    target.write(",".join(map(csv_field, columns)) + "\n")
    walls = [number for number, name in enumerate(columns) if name in wall]
    n_nonfinite = 0
    for row in rows:
        values = row
        if walls:
            values = list(row)
            for number in walls:
                values[number] = _unzoned(values[number])
        for value in values:
            if type(value) in _NESTED:
                n_nonfinite += count_nonfinite(value)
        fields = [csv_field(value, zone) for value in values]
        # A line of one empty field would be an empty line, which readers skip.
        target.write((",".join(fields) if fields != [""] else '""') + "\n")
    return n_nonfinite


def write_json(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    target: TextIO,
    zone: Zone = UTC_ZONE,
    wall: Collection[str] = (),
    encoded: Collection[str] = (),
    *,
    is_list: bool = True,
) -> int:
    """Write objects, one per line: as a list, or as JSON Lines. encoded: columns of JSON, which are decoded.

    wall: as in `write_csv`. Returns the number of NaN and infinite numbers, for which JSON has null.
    """
    begin, between, end = ("[\n", ",\n", "\n]\n") if is_list else ("", "\n", "\n")
    separator, n_nonfinite = begin, 0
    encoder = _ENCODERS[limited_encoding.is_unicode(target)]  # safeguard: json-stays-exact
    for row in rows:
        item = {}
        for name, value in zip(columns, row, strict=True):
            if name in wall:
                value = _unzoned(value)
            n_nonfinite += count_nonfinite(value)
            item[name] = plain_value(decoded(value) if name in encoded else value, zone)
        target.write(separator + encoder.encode(item))
        separator = between
    if separator == between:
        target.write(end)
    elif is_list:
        target.write("[]\n")
    return n_nonfinite


def _unzoned(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def write_parquet(result: "Result | Rows | StreamedRows", path: str) -> None:
    """Write a parquet file."""
    with atomic_output(path) as temporary:
        stop = result.stop if isinstance(result, StreamedRows) else None
        _write_in_thread(lambda: result.relation().write_parquet(temporary), stop)


def _write_in_thread(write: Callable[[], object], stop: Callable[[], None] | None) -> None:
    """Run a call of DuckDB in a thread: in the main one it would replace Ctrl-C by an error of its own."""
    written: Future[None] = Future()

    def work() -> None:
        try:
            write()
            written.set_result(None)
        except BaseException as error:
            written.set_exception(error)

    thread = threading.Thread(target=work, name="chiplog-parquet", daemon=True)
    thread.start()
    try:
        wait([written])
    finally:
        if not written.done() and stop is not None:
            stop()  # safeguard: interrupt-ends-parquet
        thread.join()
    written.result()


def write_arrow(result: "Result | Rows | StreamedRows", path: str) -> None:
    """Write a file of Arrow's IPC format, which is Feather version 2."""
    from arro3.io import write_ipc

    with atomic_output(path) as temporary:
        write_ipc(result.relation(), temporary)


def write_result(
    result: "Result | Rows | StreamedRows",
    output: Output,
    zone: Zone = UTC_ZONE,
    encoded: Collection[str] = (),
    sheets: "Callable[[], Iterable[Sheet | str]] | None" = None,
    target: TextIO | None = None,
    table_rows_max: int | None = TABLE_ROWS_MAX,
) -> None:
    """Write a table in any format. encoded: columns of JSON. sheets: the layout for people, if the command has one.

    target: in place of standard output. table_rows_max: of a table for people; None: all rows.
    """
    form, path = output.form, output.path
    if form in BINARY:
        assert path is not None
        (write_parquet if form == "parquet" else write_arrow)(result, path)
        return
    if form in ("table", "md") and sheets is not None:
        write_sheets(sheets(), output)
        return
    wall = result.wall_times if zone.is_local else ()
    rows, n_nonfinite = result.tuples(), 0
    with contextlib.nullcontext(target) if target is not None else open_output(path) as target:
        if form == "csv":
            n_nonfinite = write_csv(result.columns, rows, target, zone, wall)
        elif form in ("json", "jsonl"):
            n_nonfinite = write_json(result.columns, rows, target, zone, wall, encoded, is_list=form == "json")
        elif form == "md":
            headings, texts = result_cells(result.columns, list(rows), zone, wall)
            target.writelines(f"{line}\n" for line in markdown_lines(headings, null_filled(texts)))
        else:
            _write_table(result.columns, list(rows), target, zone, wall, table_rows_max)
    report_nonfinite(n_nonfinite)


def write_object(value: dict[str, Any], path: str | None = None, zone: Zone = UTC_ZONE) -> None:
    """Write one JSON object, and report values that JSON lacks. path: a file in place of standard output."""
    with open_output(path) as target:
        is_ascii = not limited_encoding.is_unicode(target)
        target.write(json.dumps(plain_value(value, zone), ensure_ascii=is_ascii, indent=1) + "\n")
    report_nonfinite(count_nonfinite(value))


def report_nonfinite(count: int) -> None:
    """Report values that a format lacks on standard error."""
    if count:  # safeguard: null-for-nan-is-reported
        values = "1 value is" if count == 1 else f"{count} values are"
        click.echo(f"{values} NaN or infinite: null in JSON; csv, table and parquet have NaN and infinity", err=True)


def _write_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    target: TextIO,
    zone: Zone,
    wall: Collection[str],
    rows_max: int | None,
) -> None:
    shown = rows[:rows_max]
    if target.isatty():
        print_tables(result_table(columns, shown, zone, wall), file=target)
    else:
        headings, texts = result_cells(columns, shown, zone, wall)
        target.writelines(f"{line}\n" for line in plain_lines(headings, null_filled(texts)))
    if len(rows) > len(shown):
        target.flush()
        click.echo(f"… and {len(rows) - len(shown)} more rows; use --format csv for all", err=True)


def write_sheets(sheets: "Iterable[Sheet | str | Text]", output: Output) -> None:
    """Write laid-out tables, and texts between them, as a table or in Markdown."""
    from chiplog_cli.tables.fitted_table import Sheet

    with open_output(output.path) as target:
        if output.form == "md":
            for sheet in sheets:
                lines = sheet.markdown() if isinstance(sheet, Sheet) else [str(sheet)]
                target.writelines(f"{line}\n" for line in lines)
        else:
            print_tables(*sheets, file=target)
