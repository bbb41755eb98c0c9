"""Tables: rows of plain values and media, stored as Parquet."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import islice
from typing import Any

from chiplog.media.encoding.arrays import host_array
from chiplog.media.encoding.captured import check_size, problem_of, refuse_stand_in, report_unknown_arguments
from chiplog.media.encoding.columns import Column, build_column
from chiplog.media.encoding.frames import (
    is_frame,
    is_pandas,
    pandas_columns,
    panics_caught,
    read_arrow,
    to_parquet_types,
    too_many_rows,
)
from chiplog.safety.lenient_calls import hide_unknown_arguments
from chiplog.safety.text import clean_utf8, short_repr
from chiplog.values.media_value import Content, MediaError, MediaValue
from chiplog_schemas.interrupts import raise_interrupt
from chiplog_schemas.limits import KEY_BYTES_MAX, TABLE_COLUMNS_MAX, TABLE_ROWS_MAX

_DEFAULT_COLUMNS = ("Input", "Output", "Expected")  # W&B's
_COMPRESSION = "zstd(1)"  # half the bytes of snappy, in 2 ms for 1,000 x 10


class Table(MediaValue):
    """A table, logged as one value. `log()` stores the rows that it has then.

    Only `get_column` and `get_dataframe` raise: `log()` counts a table that cannot be stored, and says why in one line.

    Args:
        columns: Names of the columns, or what `data` takes if nothing else is given. Without names those of a data
            frame or of dicts; otherwise W&B's Input, Output and Expected, or numbers if there are not three columns.
        data: Rows as lists or dicts, an array of the shape (rows, columns), or a data frame: of pandas, polars,
            pyarrow, DuckDB, or anything with `__arrow_c_stream__`. All but pandas are read at once.
        rows: Rows, as `data`.
        dataframe: A data frame, as `data`; its columns count.
        dtype: Ignored, as are `optional` and `allow_mixed_types`: types follow from the values.
        optional: Ignored: every value may be None.
        allow_mixed_types: Ignored: a column of several types becomes text, each value as JSON.
        log_mode: Kept in the metadata. Each `log()` stores the whole table.

    The column of a cell with an `Image`, `Audio`, … has the text `sha256:` and the digest of the stored bytes. Lists,
    dicts and arrays become JSON. Names of columns that are not plain are in the metadata, with their kind.

    Attributes:
        columns: The names.
        data: The rows, as lists. Both may be changed.

    Examples:
        >>> table = chiplog.Table(columns=["image", "label"])
        >>> table.add_data(chiplog.Image(pixels), "cat")
        >>> run.log({"samples": table}, step=step)
    """

    @hide_unknown_arguments
    def __init__(
        self,
        columns: Sequence[str | int] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        dtype: Any = None,
        optional: Any = True,
        allow_mixed_types: bool = False,
        log_mode: str | None = "IMMUTABLE",
        *more: Any,
        **unknown: Any,
    ) -> None:
        self.columns: list[Any] = []
        self.log_mode = log_mode
        self._rows: list[list[Any]] = []
        self._frame: Any = None  # a data frame, as long as its rows have not been read
        self._problem = ""
        report_unknown_arguments(type(self).__name__, more, unknown)
        try:
            self._read(columns, next((given for given in (dataframe, data, rows) if given is not None), None))
        except Exception as error:
            self._problem = problem_of(error)

    def _read(self, columns: Sequence[Any] | None, data: Any) -> None:
        if isinstance(columns, str):
            raise MediaError(f"columns= is the text {short_repr(columns)}; pass a list of names")
        refuse_stand_in(data)
        if data is None and _is_data(columns):  # Table(frame): the first argument is W&B's, the names
            columns, data = None, columns
        names = None if columns is None else list(columns)
        if is_frame(data):
            self._read_frame(data)
            return
        self._rows, found = _read_rows(data)
        n_columns = len(self._rows[0]) if self._rows else len(_DEFAULT_COLUMNS)
        defaults = _DEFAULT_COLUMNS if n_columns == len(_DEFAULT_COLUMNS) else range(n_columns)
        self.columns = names if names is not None else found or list(defaults)

    def _read_frame(self, frame: Any) -> None:
        if is_pandas(frame):
            self._frame, self.columns = frame, list(frame.columns)
            return
        try:
            with panics_caught():
                self._frame = read_arrow(frame)
            self.columns = list(self._frame.column_names)
        except Exception as error:
            raise_interrupt(error)
            if not type(frame).__module__.startswith("polars."):
                raise
            # Types that arro3 cannot read: integers of 128 bits, columns without a type.
            self._rows, self.columns = _read_rows(frame.to_dict(as_series=False))

    @property
    def data(self) -> list[list[Any]]:
        """The rows, as lists. They may be changed."""
        if self._frame is not None:
            frame, self._frame = self._frame, None
            try:
                self._rows = _frame_rows(frame)
            except Exception as error:
                self._problem = problem_of(error)
        return self._rows

    @data.setter
    def data(self, rows: Any) -> None:
        self._frame = None
        try:
            self._rows, _ = _read_rows(rows)
        except Exception as error:
            self._problem = problem_of(error)

    def add_data(self, *data: Any) -> None:
        """Add a row.

        Args:
            data: A value for each column.
        """
        self.data.append(list(data))

    def add_row(self, *row: Any) -> None:
        """Add a row, as `add_data`.

        Args:
            row: A value for each column, or one list of them.
        """
        is_list = len(row) == 1 and isinstance(row[0], list | tuple) and len(self.columns) != 1
        self.add_data(*(row[0] if is_list else row))

    def add_rows(self, rows: Iterable[Iterable[Any]]) -> None:
        """Add several rows.

        Args:
            rows: Lists with a value for each column.
        """
        try:
            self.data.extend([list(row) for row in islice(rows, TABLE_ROWS_MAX + 1)])
        except Exception as error:
            self._problem = problem_of(error)

    def add_column(self, name: str | int, data: Any, optional: bool = False) -> None:
        """Add a column.

        Args:
            name: Its name.
            data: A list or array with a value for each row.
            optional: Ignored: every value may be None.
        """
        try:
            values = list(data)
        except Exception as error:
            self._problem = problem_of(error)
            return
        rows = self.data
        if not rows and not self.columns:
            rows.extend([] for _ in values)
        if len(values) != len(rows):
            self._problem = (
                f"column {short_repr(name)} has {len(values)} values for {len(rows)} rows; give one for each"
            )
            return
        for row, value in zip(rows, values, strict=True):
            row.append(value)
        self.columns.append(name)

    def add_computed_columns(self, fn: Any) -> None:
        """Add columns that a function computes from each row.

        Args:
            fn: Called with the number of a row and the row as a dict; returns a dict of the new values by column.
        """
        found: dict[Any, list[Any]] = {}
        for index, row in self.iterrows():
            for name, value in fn(index, dict(zip(self.columns, row, strict=False))).items():
                found.setdefault(name, []).append(value)
        for name, values in found.items():
            self.add_column(name, values)

    def get_column(self, name: str | int, convert_to: str | None = None) -> Any:
        """Return the values of a column.

        Args:
            name: The name of the column.
            convert_to: "numpy" for an array of numpy.

        Returns:
            A list, or an array of the shape (rows,).

        Raises:
            KeyError: There is no such column.
        """
        if name not in self.columns:
            raise KeyError(name)
        place = self.columns.index(name)
        values = [row[place] for row in self.data]
        return host_array(values) if convert_to == "numpy" else values

    def get_dataframe(self) -> Any:
        """Return the table as a DataFrame of pandas.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas as pd

        return pd.DataFrame.from_records(self.data, columns=self.columns)

    def get_index(self) -> list[int]:
        """Return the numbers of the rows."""
        return list(range(len(self.data)))

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the number of each row, and the row as a list."""
        yield from enumerate(self.data)

    def to_content(self) -> Content:
        """Return the rows of this moment as Parquet, and the media in them as parts named by the column.

        The number of their row is in the metadata, as `row`.

        Raises:
            MediaError: The table cannot be stored.
        """
        if self._problem:
            raise MediaError(self._problem)
        try:
            with panics_caught():
                content = self._encode()
            check_size(content)
        except Exception as error:
            raise MediaError(problem_of(error)) from None
        return content

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy rows: tables of arro3 do not pickle."""
        if self._frame is not None and not is_pandas(self._frame):
            self.data  # noqa: B018  # reads the rows
        return vars(self).copy()

    def _encode(self) -> Content:
        from arro3.core import Table as ArrowTable  # importing chiplog must not cost it
        from arro3.io import write_parquet

        names = [clean_utf8(str(name)) for name in self.columns]
        self._check_names(names)
        kinds: dict[str, str] = {}
        parts: list[tuple[str, Content]] = []
        if self._frame is not None and not is_pandas(self._frame):
            table, kinds = to_parquet_types(self._frame.rename_columns(names))
        else:
            columns = self._build_columns(names)
            table = ArrowTable.from_arrays([column.array for column in columns], names=names)
            for name, column in zip(names, columns, strict=True):
                if column.kind:
                    kinds[name] = column.kind
                parts += [(name, _in_row(content, row)) for row, content in column.parts]
        buffer = BytesIO()
        write_parquet(table, buffer, compression=_COMPRESSION)
        metadata: dict[str, Any] = {"format": "parquet", "n_rows": table.num_rows, "n_columns": table.num_columns}
        if kinds:
            metadata["columns"] = kinds
        if self.log_mode not in (None, "IMMUTABLE"):
            metadata["log_mode"] = clean_utf8(str(self.log_mode))
        return Content("table", buffer.getvalue(), metadata, tuple(parts))

    def _check_names(self, names: list[str]) -> None:
        if not names:
            raise MediaError("it has 0 columns; name them in columns=")
        if long := [name for name in names if len(name.encode()) > KEY_BYTES_MAX]:
            raise MediaError(f"column {short_repr(long[0])} has a name of more than {KEY_BYTES_MAX} bytes; shorten it")
        if len(names) > TABLE_COLUMNS_MAX:
            raise MediaError(f"it has {len(names)} columns, the limit is {TABLE_COLUMNS_MAX}; log rows instead")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise MediaError(f"it has two columns {short_repr(twice)}; rename one")

    def _build_columns(self, names: list[str]) -> list[Column]:
        """Convert each column of rows or of a DataFrame of pandas."""
        if self._frame is not None:
            if len(self._frame) > TABLE_ROWS_MAX:
                raise too_many_rows()
            return [_build(name, values) for name, (_, values) in zip(names, pandas_columns(self._frame), strict=True)]
        rows = self._rows
        if len(rows) > TABLE_ROWS_MAX:
            raise too_many_rows()
        if set(map(len, rows)) - {len(names)}:
            ragged = next(index for index, row in enumerate(rows) if len(row) != len(names))
            n_values = len(rows[ragged])
            raise MediaError(f"row {ragged} has {n_values} values for {len(names)} columns; give one for each")
        columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(names)
        return [build_column(name, values) for name, values in zip(names, columns, strict=True)]


def _build(name: str, values: Any) -> Column:
    """Convert a column of pandas: numbers of numpy without a detour over Python."""
    if isinstance(values, list):
        return build_column(name, values)
    from arro3.core import Array

    return Column(Array.from_numpy(values))


def _frame_rows(frame: Any) -> list[list[Any]]:
    """Return the rows of a data frame as lists of Python values."""
    if is_pandas(frame):
        columns: list[Any] = [values for _, values in pandas_columns(frame)]
    else:
        with panics_caught():
            columns = [frame.column(place).to_pylist() for place in range(frame.num_columns)]
    return [list(row) for row in zip(*map(_as_list, columns), strict=True)]


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list) else list(values.tolist())


def _is_data(columns: Any) -> bool:
    """Return True for what holds rows in place of the names of columns."""
    if is_frame(columns) or isinstance(columns, Mapping) or getattr(columns, "ndim", 1) == 2:
        return True
    return isinstance(columns, list | tuple) and len(columns) > 0 and isinstance(columns[0], Mapping | list)


def _read_rows(data: Any) -> tuple[list[list[Any]], list[Any]]:
    """Return rows as lists, and the names of their columns if they are dicts."""
    if data is None:
        return [], []
    if isinstance(data, Mapping):
        return [list(row) for row in zip(*data.values(), strict=True)], list(data)
    if not isinstance(data, list | tuple):
        array = host_array(data)
        if array is None and not isinstance(data, Iterable):
            raise MediaError(
                f"a value of type {type(data).__name__} is not a table; pass a list of rows, or a data frame"
            )
        data = list(islice(data, TABLE_ROWS_MAX + 1)) if array is None else array.tolist()
        if array is not None and array.ndim != 2:
            raise MediaError(f"an array of the shape {array.shape} is not a table; pass (rows, columns)")
    if data and all(isinstance(row, Mapping) for row in data):
        names = list(dict.fromkeys(name for row in data for name in row))
        return [[row.get(name) for name in names] for row in data], names
    for index, row in enumerate(data):
        if isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise MediaError(f"row {index} is a value of type {type(row).__name__}; pass a list of values for each row")
    return [list(row) for row in data], []


def _in_row(content: Content, row: int) -> Content:
    parts = tuple((name, _in_row(part, row)) for name, part in content.parts)  # masks of an image
    return replace(content, metadata={**content.metadata, "row": row}, parts=parts)
