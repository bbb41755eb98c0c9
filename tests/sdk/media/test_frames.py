"""Data frames of other libraries as Arrow tables."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from chiplog.media import frames
from chiplog.media.frames import is_frame, is_pandas, pandas_columns, read_arrow
from chiplog.values.media_value import MediaError

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

    with pytest.raises(MediaError, match=r"it has 3 rows or more, the limit is 2; log a sample, or save\(\) a file"):
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


def test_other_values_are_no_frames() -> None:
    assert not any(map(is_frame, ([], {}, None, np.zeros((2, 2)))))
