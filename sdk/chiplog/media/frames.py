"""Data frames of any library as Arrow tables."""

import sys
from collections.abc import Sequence
from typing import Any

from chiplog.values.media_value import MediaError
from chiplog_schemas.limits import TABLE_ROWS_MAX


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
            raise too_many_rows(n_rows)
        batches.append(batch)
    return Table.from_batches(batches, schema=reader.schema)


def too_many_rows(n_rows: int) -> MediaError:
    """Build the error of a table with too many rows."""
    return MediaError(f"it has {n_rows} rows or more, the limit is {TABLE_ROWS_MAX}; log a sample, or save() a file")


def pandas_columns(frame: Any) -> list[tuple[str, Sequence[Any]]]:
    """Return names and values of the columns of a DataFrame of pandas: arrays of numbers, and lists of other values."""
    columns: list[tuple[str, Sequence[Any]]] = []
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        if getattr(column.dtype, "kind", "O") in "biuf" and type(column.dtype).__module__.startswith("numpy"):
            columns.append((str(name), column.to_numpy()))
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
