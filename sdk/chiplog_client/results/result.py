"""The result of a query: an Arrow stream, returned as Python values, Arrow, pandas, polars or a DuckDB relation."""

import html
import importlib.util
import io
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from chiplog_client.results.arrow_validation import validate_ipc_stream
from chiplog_client.results.python_values import python_values
from chiplog_client.results.sparkline import sparkline
from chiplog_schemas.interrupts import handlers_held, raise_interrupt
from chiplog_schemas.query.query_messages import one_line

if TYPE_CHECKING:
    import duckdb

__all__ = ["QueryError", "Result"]

HTML_ROWS_MAX = 20  # of a notebook's table: a screen full; `df()` shows more
HTML_BARS_MAX = 60  # of a list of numbers as a curve: the width of a column
HTML_CELL_CHARS_MAX = 200  # of one cell of it: a longer text hides the other columns


class QueryError(RuntimeError):
    """A query without a result.

    Attributes:
        kind: refused, forbidden, sql, timeout, busy, too_large, cancelled, expired, internal, stopping or unreachable.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle both arguments: a worker that raises this must not end its pool."""
        return type(self), (self.kind, self.message)


class Result:
    """The whole result of a query. Times are UTC, without a zone; JSON columns are text."""

    def __init__(self, stream: "bytes | bytearray | memoryview") -> None:
        from arro3.core import Table
        from arro3.io import read_ipc_stream

        try:
            validate_ipc_stream(stream)
            # Read all at once: a panic in a stream that another library reads would end this process.
            table = Table.from_arrow(read_ipc_stream(stream).read_all())
        except BaseException as error:  # arro3 raises nothing more specific, and its panics are not Exceptions
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise_interrupt(error)  # safeguard: interrupt-passes-answer
            message = f"the answer is not an Arrow stream: {one_line(str(error))}; check that a collector answers there"
            raise QueryError("internal", message) from error
        self.columns: list[str] = unique_names(table.column_names)
        self._table = table if self.columns == table.column_names else table.rename_columns(self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the Arrow stream: arro3's tables do not pickle."""
        from arro3.io import write_ipc_stream

        write_ipc_stream(self._table, stream := io.BytesIO())
        return Result, (stream.getvalue(),)

    @property
    def wall_times(self) -> list[str]:
        """The columns of times without a zone: UTC in the views."""
        from arro3.core import DataType

        pairs = zip(self.columns, self._types, strict=True)
        return [name for name, kind in pairs if DataType.is_timestamp(kind) and kind.tz is None]

    @property
    def _types(self) -> list[Any]:
        """The type of each column, of arro3."""
        return [self._table.schema.field(number).type for number in range(len(self.columns))]

    def _slice(self, first: int, n_rows_max: int) -> "Result":
        """Return a part of the rows, which shares their memory."""
        part = object.__new__(Result)
        part.columns = self.columns
        first = min(first, len(self))
        part._table = self._table.slice(first, min(n_rows_max, len(self) - first))
        return part

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over `rows()`."""
        return iter(self.rows())

    def __repr__(self) -> str:
        return f"<chiplog result: {len(self)} rows of {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """Return a table of the first rows for notebooks, with the number of all rows; a list of numbers is a curve."""
        first = self._slice(0, HTML_ROWS_MAX)
        heads = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in first.tuples())
        shown = f"the first {HTML_ROWS_MAX} of " if len(self) > HTML_ROWS_MAX else ""
        count = f"{shown}{len(self)} row{'' if len(self) == 1 else 's'} × {len(self.columns)} columns"
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table><p>{count}</p>"

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict per row of Python values: datetime (UTC, naive), int, float, str, bytes, list, dict, None."""
        with handlers_held():  # safeguard: interrupt-passes-rows
            rows: list[dict[str, Any]] = []
            # Column by column: a dict from zip() takes five times as long, and tuples make the garbage collector run.
            for number, (name, values) in enumerate(zip(self.columns, self._values(), strict=True)):
                if number == 0:
                    rows = [{name: value} for value in values]
                else:
                    for row, value in zip(rows, values, strict=True):
                        row[name] = value
            return rows

    def tuples(self) -> list[tuple[Any, ...]]:
        """Return a tuple per row, in the order of `columns`."""
        with handlers_held():  # safeguard: interrupt-passes-tuples
            return list(zip(*self._values(), strict=True))

    def _values(self) -> list[Sequence[Any]]:
        """Return the Python values of each column. Call it, and use what it returns, while signal handlers are held.

        DuckDB would raise an error of its own in place of what a handler raises. And so many objects make the garbage
        collector run: if one of `gc.callbacks` is a Python function, a handler may run in it, and what the handler
        raises is lost.
        """
        columns: list[Sequence[Any]] = []
        for number in range(len(self.columns)):
            values = python_values(self._table.column(number))
            if values is None:
                rows = self.relation().fetchall()
                return list(zip(*rows, strict=True)) if rows else [()] * len(self.columns)
            columns.append(values)
        return columns

    def relation(self) -> "duckdb.DuckDBPyRelation":
        """Return the result as a relation of a DuckDB in memory, for more SQL or to write it to a file.

        Types that Arrow lacks are restored: times with a zone become UTC without one, and a HUGEINT, such as every sum
        of integers, remains one.
        """
        return relation_of(self._table)

    def arrow(self) -> Any:
        """Return a pyarrow.Table; without pyarrow an arro3 Table, which every Arrow library accepts."""
        if importlib.util.find_spec("pyarrow") is None:
            return self._table
        import pyarrow

        return pyarrow.table(self._table)

    def df(self) -> Any:
        """Return a pandas.DataFrame.

        Raises:
            ImportError: pandas is not installed.
        """
        with handlers_held():
            return self.relation().df()

    def pl(self) -> Any:
        """Return a polars.DataFrame.

        Raises:
            ImportError: polars is not installed.
        """
        import polars

        return polars.DataFrame(self._table)


def relation_of(arrow: Any, *, is_stream: bool = False) -> "duckdb.DuckDBPyRelation":
    """Return an Arrow table or stream as a relation of a DuckDB in memory: times without a zone, HUGEINT as such."""
    import duckdb

    connection = duckdb.connect()
    if is_stream:  # several threads would hold seven times as much, to keep the order, and take as long
        connection.execute("SET threads = 1")
    connection.execute("SET TimeZone = 'UTC'")
    relation = connection.from_arrow(arrow)
    projected = []
    for name, kind in zip(relation.columns, map(str, relation.types), strict=True):
        quoted = '"' + name.replace('"', '""') + '"'
        if "TIMESTAMP WITH TIME ZONE" in kind:
            plain = kind.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMP")
            projected.append(f"CAST({quoted} AS {plain}) AS {quoted}")
        elif kind == "DECIMAL(38,0)":
            projected.append(f"CAST({quoted} AS HUGEINT) AS {quoted}")
        else:
            projected.append(quoted)
    return relation.project(", ".join(projected)) if projected else relation


def _html_cell(value: Any) -> str:
    if isinstance(value, list) and len(value) > 1 and _is_curve(value):
        finite = [number for number in value if number is not None and math.isfinite(number)]
        title = f"{len(value)} values" + (f", {min(finite):g} to {max(finite):g}" if finite else "")
        return f'<td title="{title}">{sparkline(_thinned(value))}</td>'
    text = "" if value is None else str(value)
    if len(text) > HTML_CELL_CHARS_MAX:
        text = text[: HTML_CELL_CHARS_MAX - 1] + "…"
    return f"<td>{html.escape(text)}</td>"


def _is_curve(values: list[Any]) -> bool:
    """Return True if a list has only numbers and None, and at least one number."""
    kinds = {type(value) for value in values}
    return kinds <= {int, float, Decimal, type(None)} and kinds != {type(None)}


def _thinned(values: list[Any]) -> list[Any]:
    """Return a list with at most HTML_BARS_MAX numbers: the largest of each part, so that a peak is seen."""
    size = math.ceil(len(values) / HTML_BARS_MAX)
    parts = (values[at : at + size] for at in range(0, len(values), size))
    return [max((value for value in part if value is not None), default=None) for part in parts]


def unique_names(names: Sequence[str]) -> list[str]:
    """Return unique names, with a number after repeated ones: a, a → a, a_1. DuckDB ignores their case."""
    taken: set[str] = set()
    unique = []
    for name in names:
        candidate, number = name, 0
        while candidate.lower() in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate.lower())
        unique.append(candidate)
    return unique
