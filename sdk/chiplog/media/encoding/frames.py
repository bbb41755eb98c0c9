"""Data frames of any library as Arrow tables."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from chiplog.safety.text import clean_utf8, short_repr
from chiplog.values.media_value import MediaError
from chiplog_schemas.limits import TABLE_ROWS_MAX

_MESSAGE_CHARS = 200  # of a panic


def is_pandas(value: Any) -> bool:
    """Return True if a value is a DataFrame of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_frame(value: Any) -> bool:
    """Return True if a value is a data frame: of pandas, polars, DuckDB, pyarrow, or any that Arrow can read."""
    return is_pandas(value) or hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__")


def read_arrow(frame: Any) -> Any:
    """Return a data frame of another library than pandas as an arro3 Table, mostly uncopied. Raises MediaError."""
    from arro3.core import RecordBatchReader, Table  # importing chiplog must not cost it

    if not hasattr(frame, "__arrow_c_stream__"):
        frame = _interchanged(frame)
    batches, n_rows = [], 0
    reader = RecordBatchReader.from_arrow(frame)
    for batch in reader:
        n_rows += batch.num_rows
        if n_rows > TABLE_ROWS_MAX:
            raise too_many_rows()
        batches.append(batch)
    return Table.from_batches(batches, schema=reader.schema)


def to_parquet_types(table: Any) -> tuple[Any, dict[str, str]]:
    """Return a table with the types that Parquet and DuckDB have, and the kinds of columns whose type was changed.

    A column without a type becomes text, a dictionary its values, a duration an integer of a kind such as duration_us.
    Raises MediaError for a type that cannot be written: arro3 would panic, and print a stack trace.
    """
    from arro3.core import DataType, Field

    kinds: dict[str, str] = {}
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        found = column.type
        if not _can_be_written(found):
            what = clean_utf8(str(found)).strip().removeprefix("arro3.core.DataType")
            raise MediaError(f"column {short_repr(name)} has a type that Parquet lacks: {what:.80}; cast it")
        is_in_seconds = (DataType.is_timestamp(found) or DataType.is_time32(found)) and found.time_unit == "s"
        if DataType.is_duration(found):
            kinds[name] = f"duration_{found.time_unit}"
            changed = DataType.int64()
        elif DataType.is_dictionary(found):
            is_view = DataType.is_string_view(found.value_type)
            changed = DataType.utf8() if is_view else found.value_type
        elif DataType.is_null(found):
            changed = DataType.utf8()
        elif DataType.is_date64(found):
            changed = DataType.date32()
        elif is_in_seconds:
            changed = DataType.time32("ms") if DataType.is_time32(found) else DataType.timestamp("ms", tz=found.tz)
        else:
            continue
        table = table.set_column(place, Field(name, changed), column.cast(changed))
    return table, kinds


def _can_be_written(kind: Any, *, is_within: bool = False) -> bool:
    """Return True if arro3 writes a type, here or within another type. It writes no dictionary of polars' texts."""
    from arro3.core import DataType

    if DataType.is_union(kind) or DataType.is_interval(kind):
        return False
    if DataType.is_struct(kind):
        return kind.num_fields > 0 and all(_can_be_written(entry.type, is_within=True) for entry in kind.fields)
    if DataType.is_dictionary(kind):
        return not (is_within and DataType.is_string_view(kind.value_type))
    if DataType.is_map(kind):  # arro3 does not show the types in it
        return True
    if DataType.is_nested(kind):
        return _can_be_written(kind.value_type, is_within=True)
    return bool(kind.num_fields == 0)  # others are run-end encoded: is_run_end_encoded of arro3 0.9 is wrong


@contextmanager
def panics_caught() -> Iterator[None]:
    """Turn a panic of arro3 into MediaError: it is no Exception, and would end the training."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise MediaError(f"Arrow cannot convert it: {clean_utf8(str(error))[:_MESSAGE_CHARS]}") from None


def too_many_rows() -> MediaError:
    """Build the error of a table with too many rows."""
    return MediaError(f"it has more than {TABLE_ROWS_MAX} rows; log a sample, or save() a file")


def pandas_columns(frame: Any) -> list[tuple[str, Sequence[Any]]]:
    """Return names and values of the columns of a DataFrame of pandas: arrays of numbers, and lists of other values."""
    columns: list[tuple[str, Sequence[Any]]] = []
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        kind = column.dtype
        if type(kind).__module__.startswith("numpy") and kind.kind in "biuf" and kind.itemsize <= 8:
            # arro3 takes no strides, and reads any byte order as its own.
            columns.append((str(name), column.to_numpy().astype(kind.newbyteorder("="), order="C", copy=False)))
        else:
            values = column.astype(object).where(column.notna(), None).tolist()
            columns.append((str(name), values))
    return columns


def _interchanged(frame: Any) -> Any:
    """Return a frame that only has the older protocol `__dataframe__` as one of pandas or pyarrow."""
    try:
        from pyarrow.interchange import from_dataframe
    except ImportError:
        raise MediaError(f"a {type(frame).__name__} is read by pyarrow; pip install pyarrow, or log rows") from None
    return from_dataframe(frame)
