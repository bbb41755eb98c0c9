"""The type objects and constructors of PEP 249."""

from datetime import date, datetime, time

import pytest
from arro3.core import DataType

from chiplog_client import dbapi
from chiplog_client.dbapi.type_objects import type_object_of


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (DataType.int64(), dbapi.NUMBER),
        (DataType.float64(), dbapi.NUMBER),
        (DataType.bool(), dbapi.NUMBER),
        (DataType.decimal128(38, 0), dbapi.NUMBER),
        (DataType.string(), dbapi.STRING),
        (DataType.null(), dbapi.STRING),
        (DataType.binary(), dbapi.BINARY),
        (DataType.timestamp("us"), dbapi.DATETIME),
        (DataType.date32(), dbapi.DATETIME),
        (DataType.month_day_nano_interval(), dbapi.DATETIME),
        (DataType.list(DataType.int64()), dbapi.NESTED),
    ],
)
def test_each_type_of_arrow_has_a_type_object(kind: DataType, expected: object) -> None:
    assert type_object_of(kind) is expected


def test_type_objects_are_equal_to_themselves_only_and_show_their_name() -> None:
    objects = [dbapi.STRING, dbapi.BINARY, dbapi.NUMBER, dbapi.DATETIME, dbapi.ROWID, dbapi.NESTED]
    assert len(set(objects)) == len(objects)
    assert repr(dbapi.NUMBER) == "chiplog.dbapi.NUMBER"


def test_constructors_make_values_that_queries_take() -> None:
    assert dbapi.Date(2026, 1, 2) == date(2026, 1, 2)
    assert dbapi.Time(3, 4, 5) == time(3, 4, 5)
    assert dbapi.Timestamp(2026, 1, 2, 3, 4, 5) == datetime(2026, 1, 2, 3, 4, 5)
    assert dbapi.Binary(b"x") == b"x"
    ticks = 1_767_323_045.0
    assert dbapi.TimestampFromTicks(ticks) == datetime(2026, 1, 2, 3, 4, 5)
    assert (dbapi.DateFromTicks(ticks), dbapi.TimeFromTicks(ticks)) == (date(2026, 1, 2), time(3, 4, 5))
