"""Data frames of other libraries as Arrow tables."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from chiplog.media.encoding import frames
from chiplog.media.encoding.frames import (
    is_frame,
    is_pandas,
    pandas_columns,
    panics_caught,
    read_arrow,
    to_parquet_types,
)
from chiplog.values.media_value import MediaError

DICTIONARY = pa.DictionaryArray.from_arrays(
    pa.array([0, 1], pa.uint32()), pa.array(["a", "b"], pa.string_view())
)  # polars
ARROW = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})


class OlderProtocol:
    """A frame with nothing but `__dataframe__`."""

    def __dataframe__(self, *given: Any, **named: Any) -> Any:
        return ARROW.__dataframe__()


@pytest.mark.parametrize(
    "frame", [ARROW, ARROW.to_reader(1), OlderProtocol()], ids=["table", "stream", "__dataframe__"]
)
def test_anything_that_arrow_reads_is_a_frame(frame: Any) -> None:
    assert is_frame(frame) and not is_pandas(frame)
    assert pa.table(read_arrow(frame)).to_pydict() == ARROW.to_pydict()


def test_a_frame_without_rows_keeps_its_columns() -> None:
    assert pa.table(read_arrow(ARROW.slice(0, 0))).schema.names == ["a", "b"]


def test_a_frame_with_too_many_rows_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "TABLE_ROWS_MAX", 2)
    read = []

    def batches() -> Any:
        for number in range(9):
            read.append(number)
            yield pa.record_batch({"a": [1]})

    with pytest.raises(MediaError, match=r"it has more than 2 rows; log a sample, or save\(\) a file"):
        read_arrow(pa.RecordBatchReader.from_batches(pa.schema({"a": pa.int64()}), batches()))
    assert len(read) == 3


def test_columns_of_pandas_are_arrays_of_numbers_or_lists() -> None:
    frame = pd.DataFrame(
        {"a": [1, 2], "b": [None, "x"], "d": pd.array([1, None], "Int64"), "e": pd.Categorical(["u", "v"])}
    )
    frame.insert(2, "a", [0.5, np.nan], allow_duplicates=True)
    assert is_pandas(frame) and is_frame(frame)
    names, values = zip(*pandas_columns(frame), strict=True)
    assert names == ("a", "b", "a", "d", "e")
    assert values[0].tolist() == [1, 2] and values[2].dtype == np.float64
    assert (values[1], values[3], values[4]) == ([None, "x"], [1, None], ["u", "v"])


def test_numbers_of_pandas_are_contiguous_and_of_this_byte_order() -> None:
    frame = pd.DataFrame(np.arange(6.0).reshape(3, 2)).assign(
        big=np.arange(3, dtype=">i4"), long=np.ones(3, np.longdouble)
    )
    values = dict(pandas_columns(frame))
    assert values["0"].flags.c_contiguous and values["1"].tolist() == [1, 3, 5]
    assert values["big"].dtype == np.dtype("=i4") and values["big"].tolist() == [0, 1, 2]
    assert values["long"] == [1, 1, 1]


@pytest.mark.parametrize(
    ("array", "kind", "stored"),
    [
        (pa.nulls(2), "string", [None, None]),
        (pa.array([1, None], pa.duration("us")), "int64", [1, None]),
        (pa.array([1, 2], pa.timestamp("s", tz="UTC")), "timestamp[ms, tz=UTC]", None),
        (pa.array([1, 2], pa.timestamp("s")), "timestamp[ms]", None),
        (pa.array([0, 86_400_000], pa.date64()), "date32[day]", None),
        (pa.array([1, 2], pa.time32("s")), "time32[ms]", None),
        (pa.array(["a", "b"], pa.string_view()), "string_view", None),
        (pa.array(["a", None]).dictionary_encode(), "string", None),
        (DICTIONARY, "string", ["a", "b"]),
        (pa.array([{"a": [1]}, None]), "struct<a: list<item: int64>>", None),
        (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())), "map<string, int32>", None),
    ],
)
def test_types_that_duckdb_reads_otherwise_are_changed(array: pa.Array, kind: str, stored: list[Any] | None) -> None:
    table, kinds = to_parquet_types(read_arrow(pa.table({"c": array, "d": [1, 2]})))
    read = pa.table(table)
    assert str(read.schema.field("c").type) == kind
    assert read["c"].to_pylist() == (array.to_pylist() if stored is None else stored)
    assert kinds == ({"c": "duration_us"} if kind == "int64" else {})


@pytest.mark.parametrize(
    "array",
    [
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.array([{}], pa.struct([])),
        pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), DICTIONARY),
        pa.array([[{"a": {}}]], pa.list_(pa.struct([("a", pa.struct([]))]))),
        pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([5])),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    ],
    ids=["interval", "empty struct", "list of a dictionary", "nested", "run-end", "union"],
)
def test_a_type_that_parquet_lacks_is_named(array: pa.Array) -> None:
    with pytest.raises(MediaError, match=r"column 'c' has a type that Parquet lacks: <.*; cast it"):
        to_parquet_types(read_arrow(pa.table({"c": array})))


def test_a_panic_of_arrow_becomes_an_error_and_other_ends_pass() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(MediaError, match="Arrow cannot convert it: not implemented"), panics_caught():
        raise panic("not implemented")
    with pytest.raises(KeyboardInterrupt), panics_caught():
        raise KeyboardInterrupt


def test_other_values_are_no_frames() -> None:
    assert not any(map(is_frame, ([], {}, None, np.zeros((2, 2)))))
