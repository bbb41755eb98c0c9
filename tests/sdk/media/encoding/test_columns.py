"""Columns of Python values as Arrow arrays."""

import datetime as dt
import enum
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from chiplog.media.encoding.columns import build_column
from chiplog.media.image import Image
from chiplog.safety.foreign_names import stand_in
from chiplog.values.media_value import MediaError
from chiplog.values.metrics import Histogram

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, 678)
HOUR = dt.timezone(dt.timedelta(hours=1))


class Colour(enum.IntEnum):
    RED = 1


def built(values: list[Any]) -> tuple[str, list[Any], str]:
    column = build_column("c", values)
    array = pa.array(column.array)
    return str(array.type), array.to_pylist(), column.kind


@pytest.mark.parametrize(
    ("values", "kind", "stored"),
    [
        ([1, None, -(2**63)], "int64", None),
        ([1, 2**64 - 1], "uint64", None),
        ([1.5, None], "double", None),
        ([1, 2.5], "double", [1.0, 2.5]),
        ([10**400, 0.5], "double", [float("inf"), 0.5]),
        (["a", None, "é"], "string", None),
        (["a\ud800"], "string", ["a\\ud800"]),
        ([True, None], "bool", None),
        ([b"\x00", None], "binary", None),
        ([NOW, None], "timestamp[us]", None),
        ([NOW.replace(tzinfo=HOUR)], "timestamp[us, tz=UTC]", None),
        ([NOW.date(), None], "date32[day]", None),
        ([dt.timedelta(seconds=1.5)], "double", [1.5]),
        ([NOW.time()], "string", ["03:04:05.000678"]),
        ([Decimal("1.50")], "string", ["1.50"]),
        ([None, None], "string", None),
        ([], "string", None),
        ([np.int32(3), 4], "int64", [3, 4]),
        ([np.float64(0.5), np.float32(0.25)], "double", [0.5, 0.25]),
        ([np.bool_(True), None], "bool", [True, None]),
        ([np.str_("a")], "string", ["a"]),
        ([Colour.RED], "int64", [1]),
        ([torch.tensor(3), None], "int64", [3, None]),
        ([np.datetime64("2026-01-02T03:04:05.000678")], "timestamp[us]", [NOW]),
        ([pd.Timestamp(NOW), pd.NaT, pd.NA], "timestamp[us]", [NOW, None, None]),
        ([pd.Timedelta(seconds=2), np.timedelta64(1, "s")], "double", [2.0, 1.0]),
        ([np.longdouble(0.5), np.float16(0.5)], "double", [0.5, 0.5]),
        ([bytearray(b"a"), memoryview(b"b")], "binary", [b"a", b"b"]),
        ([dt.datetime.max, dt.datetime.min], "timestamp[us]", None),
    ],
)
def test_values_of_one_type_have_its_arrow_type(values: list[Any], kind: str, stored: list[Any] | None) -> None:
    assert built(values) == (kind, values if stored is None else stored, "")


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        ([1, "a", None], ["1", '"a"', None]),
        ([True, 1], ["true", "1"]),
        ([2**64, 1], ["18446744073709551616", "1"]),
        ([NOW, NOW.replace(tzinfo=dt.UTC)], ['"2026-01-02 03:04:05.000678"', '"2026-01-02 03:04:05.000678+00:00"']),
        ([[1, 2.5], None], ["[1, 2.5]", None]),
        ([np.zeros(2), torch.ones(1, 2)], ["[0.0, 0.0]", "[[1.0, 1.0]]"]),
        ([{"a": {1: ("x", None)}}], ['{"a": {"1": ["x", null]}}']),
        ([[float("nan")], "é", b"\xff"], ["[null]", '"é"', '"ff"']),
        ([range(2), ()], ["[0, 1]", "[]"]),
        ([Histogram((0.0, 1.0), (2.0,))], ['{"edges": [0.0, 1.0], "counts": [2.0]}']),
    ],
)
def test_mixed_values_and_containers_become_json(values: list[Any], stored: list[Any]) -> None:
    assert built(values) == ("string", stored, "json")


def test_media_become_texts_that_name_their_bytes() -> None:
    image = Image(np.zeros((2, 2)))
    column = build_column("c", [None, image])
    [(row, content)] = column.parts
    assert (row, content, column.kind) == (1, image.to_content(), "image")
    texts = pa.array(column.array).to_pylist()
    assert texts[0] is None and texts[1].startswith("sha256:") and len(texts[1]) == 7 + 64
    mixed = build_column("c", [image, 1])
    assert (pa.array(mixed.array).to_pylist(), mixed.kind) == ([f'"{texts[1]}"', "1"], "json")
    assert len(mixed.parts) == 1


class Broken:
    @property
    def dtype(self) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "column 'c', row 1: a table stores no object; add str() of it, a number, or chiplog media"),
        (lambda: 1, "column 'c', row 1: a table stores no function"),
        ([object()], "column 'c', row 1: a table stores no object"),
        (stand_in("Plotly")(), "column 'c', row 1: a table stores no Plotly"),
        ([stand_in("Plotly")()], "column 'c', row 1: a table stores no Plotly"),
        (1j, "column 'c', row 1: a table stores no complex"),
        (np.zeros(2, "V3"), "column 'c', row 1: a table stores no ndarray"),
        (Image(None), "the Image in column 'c', row 1: a value of type NoneType is not an image"),
        (Histogram("a"), "column 'c', row 1: no histogram of str"),
        (torch.zeros((), device="meta"), "column 'c', row 1: it is a tensor on the device meta, which has no values"),
        (Broken(), "column 'c', row 1: it cannot be read: ZeroDivisionError"),
    ],
)
def test_a_value_without_a_type_is_named(value: Any, reason: str) -> None:
    with pytest.raises(MediaError) as caught:
        build_column("c", [None, value])
    assert str(caught.value).startswith(reason)
