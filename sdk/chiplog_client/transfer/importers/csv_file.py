"""Any CSV file: a row for each step with a column for each metric, or a row for each value.

Columns have roles. --map ROLE=COLUMN names the column of a role; a column that is called `step` has that role already.
So have the first columns of a file that `chiplog export --to csv` wrote.

| role | meaning |
|---|---|
| step | a whole number; required. `--map step=` numbers the rows |
| time | seconds since the epoch, or ISO 8601; UTC without a zone. Without it all rows have the file's time |
| label | the label that logged the row |
| run | the run of the row: a run ID. The rows of a run follow each other |
| key, value | name and value of the only metric of the row: both or none |

All other columns are metrics under their names: numbers or texts. An empty cell has no value.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from chiplog_client.transfer.importers.formats import Options
from chiplog_client.transfer.importers.imported_run import (
    MAIN,
    ImportedRun,
    ImporterError,
    Part,
    PointBuffer,
    Text,
    run_id_of_path,
)

ROLES = ("step", "time", "label", "run", "key", "value")
# How the header of `chiplog export --to csv` begins: these columns have the roles of their names, too.
_ATTEMPT = "attempt"
_EXPORTED = (("run", "label", "step", "time"), ("run", "label", _ATTEMPT, "step", "time"))
_DELIMITERS = ",;\t|"
_DECIMAL_COMMA = re.compile(r"\s*[-+]?(\d*|\d{1,3}(\.\d{3})+),\d+([eE][-+]?\d+)?\s*")
_SHOWN = 12  # columns in a message
_STEP_END = 1 << 63
_SECONDS = (1e8, 1e11)  # 1973 and the year 5138: less has elapsed since a start, more are milliseconds
_CELL_CHARS_MAX = 1 << 20  # csv refuses longer cells, by default those over 131,072


def is_one(path: Path) -> bool:
    """Return True if a path names a CSV file."""
    return path.suffix.lower() in (".csv", ".tsv") and path.is_file()


def read(path: Path, options: Options) -> Iterator[Part]:
    """Yield the runs of a CSV file."""
    run = ImportedRun(source=path, run_id=run_id_of_path("csv", path), name=path.stem, of_path=frozenset({"name"}))
    yield from read_table(path, run, options.column_map)


def read_table(path: Path, run: ImportedRun, column_map: Mapping[str, str]) -> Iterator[Part]:
    """Yield the runs of a CSV file. run: of rows that name none."""
    csv.field_size_limit(_CELL_CHARS_MAX)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            rows = csv.reader(file, delimiter=max(_DELIMITERS, key=first.count), strict=True)
            header = next(rows, [])
            table = _Table(path, run, _columns_of(path, header, column_map), header)
            yield from table.parts(enumerate(rows), lambda: rows.line_num)
    except UnicodeDecodeError as error:
        raise ImporterError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except csv.Error as error:
        raise ImporterError(f"{path}:{rows.line_num}: {error}; save the file as CSV again") from error


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where each role is, and the metrics with their columns."""

    roles: dict[str, int]
    metrics: list[tuple[int, str]]


def _columns_of(path: Path, header: list[str], column_map: Mapping[str, str]) -> _Columns:
    names = [name.strip() for name in header]
    shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    if not any(names):
        raise ImporterError(f"{path}:1: no header; the first line must name the columns")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ImporterError(f"{path}:1: two columns are called {twice[0]!r:.80}; rename one")
    known = next((lead for lead in _EXPORTED if tuple(names[: len(lead)]) == lead), ("step",))
    roles: dict[str, int] = {}
    for role in ROLES:
        column = column_map.get(role, role if role in known and role in names else "")
        if column and column not in names:
            raise ImporterError(f"{path}:1: no column {column!r:.80} for --map {role}; the columns are {shown}")
        if column:
            roles[role] = names.index(column)
    if "step" not in roles and "step" not in column_map:
        raise ImporterError(f"{path}:1: no column of steps; name it: --map step=COLUMN, one of {shown}")
    if ("key" in roles) != ("value" in roles):
        raise ImporterError(f"{path}:1: --map key=COLUMN and --map value=COLUMN need each other; give both")
    others = {*roles.values(), *(place for place, name in enumerate(known) if name == _ATTEMPT)}
    metrics = [(place, name) for place, name in enumerate(names) if place not in others and name]
    return _Columns(roles, [] if "key" in roles else metrics)


class _Table:
    """The rows of one file."""

    def __init__(self, path: Path, run: ImportedRun, columns: _Columns, header: list[str]) -> None:
        self._path = path
        self._run = run
        self._roles = columns.roles
        self._metrics = columns.metrics
        self._header = header
        self._n_columns = len(header)
        self._step_name = header[columns.roles["step"]].strip() if "step" in columns.roles else ""
        self._file_us = path.stat().st_mtime_ns // 1000
        self._buffers: dict[str, PointBuffer] = {}
        self._runs: set[str] = set()

    def parts(self, rows: Iterator[tuple[int, list[str]]], line_of: Callable[[], int]) -> Iterator[Part]:
        """Yield the parts of all rows."""
        run: str | None = None
        for number, row in rows:
            where = f"{self._path}:{line_of()}"
            if not row:  # an empty line
                continue
            if len(row) != self._n_columns:  # safeguard: ragged-row-refused
                raise ImporterError(
                    f"{where}: {len(row)} cells, and the header has {self._n_columns}; quote cells that have the "
                    "separator, also as decimal comma, or fill the row"
                )
            if row == self._header:
                raise ImporterError(f"{where}: this is the header again; the file has two header lines: remove one")
            named = row[self._roles["run"]].strip() if "run" in self._roles else ""
            if named != run:
                yield from self._flush()
                yield self._begin(where, named)
                run = named
            yield from self._row(where, number, row)
        if run is None:
            raise ImporterError(f"{self._path}: no rows below the header")
        yield from self._flush()

    def _begin(self, where: str, named: str) -> ImportedRun:
        if named in self._runs:
            raise ImporterError(f"{where}: run {named!r:.80} has rows further up; sort the file by run")
        self._runs.add(named)
        run = replace(self._run, file_us=self._file_us)
        return replace(run, run_id=named, name=named, of_path=frozenset()) if named else run

    def _flush(self) -> Iterator[Part]:
        for buffer in self._buffers.values():
            yield from buffer.flush()
        self._buffers.clear()

    def _row(self, where: str, number: int, row: list[str]) -> Iterator[Part]:
        roles = self._roles
        step = _step_of(where, row[roles["step"]], self._step_name) if "step" in roles else number
        ts = _time_of(where, row[roles["time"]]) if "time" in roles else self._file_us
        label = (row[roles["label"]].strip() if "label" in roles else "") or MAIN
        numbers: dict[str, float] = {}
        for key, cell in self._cells(row):
            value = _value_of(where, key, cell)
            if isinstance(value, float):
                numbers[key] = value
            elif value:
                yield Text(key=key, step=step, ts=ts, value=value, label=label)
        if numbers:
            if label not in self._buffers:
                self._buffers[label] = PointBuffer(label)
            yield from self._buffers[label].add(step, ts, numbers)

    def _cells(self, row: list[str]) -> Sequence[tuple[str, str]]:
        if "key" in self._roles:
            return [(row[self._roles["key"]].strip(), row[self._roles["value"]])]
        return [(name, row[place]) for place, name in self._metrics]


def _value_of(where: str, key: str, cell: str) -> float | str:
    """Return the number or text in a cell; '' if it is empty."""
    if not cell:
        return ""
    if "_" in cell:  # 1_000 is a number in Python only
        return cell.strip()
    try:
        return float(cell)
    except ValueError:
        if _DECIMAL_COMMA.fullmatch(cell):  # safeguard: decimal-comma-refused
            raise ImporterError(
                f"{where}: column {key!r:.80} has {cell.strip()}, with a decimal comma; write it with a point"
            ) from None
        return cell.strip()


def _step_of(where: str, cell: str, column: str) -> int:
    """Return a step. column: its name, which a second header line has as a cell."""
    remedy = "correct it"
    try:
        step = int(cell) if cell.strip().lstrip("+-").isdigit() else float(cell)
        if step == int(step) and -_STEP_END <= step < _STEP_END:
            return int(step)
        if step != int(step):
            remedy = "--map step= numbers the rows"
    except OverflowError:
        pass
    except ValueError:
        if cell.strip() == column or (cell.strip()[:1].isalpha() and where.endswith(":2")):
            remedy = "the file has two header lines: remove one"
    raise ImporterError(f"{where}: step {cell!r:.80} is no whole number; {remedy}")


def _time_of(where: str, cell: str) -> int:
    """Return a time in microseconds: seconds since the epoch, or ISO 8601."""
    try:
        seconds = float(cell)
    except ValueError:
        try:
            time = datetime.fromisoformat(cell.strip())
        except ValueError:
            raise ImporterError(f"{where}: time {cell!r:.80} is neither seconds nor ISO 8601; correct it") from None
        return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1e6)
    if not _SECONDS[0] <= seconds < _SECONDS[1]:  # safeguard: elapsed-time-refused
        raise ImporterError(
            f"{where}: time {cell.strip():.80} is not in seconds since the epoch; convert it, or leave --map time out"
        )
    return round(seconds * 1e6)
