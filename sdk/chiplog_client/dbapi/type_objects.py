"""The type objects and constructors of PEP 249, and the type object of a column of Arrow."""

from datetime import UTC, date, datetime, time
from typing import Any


class TypeObject:
    """A group of column types. `Cursor.description` has one for each column."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"chiplog.dbapi.{self.name}"


STRING = TypeObject("STRING")  # also JSON, enumerations and UUIDs
BINARY = TypeObject("BINARY")
NUMBER = TypeObject("NUMBER")  # also BOOLEAN
DATETIME = TypeObject("DATETIME")  # also dates, times of day and intervals
ROWID = TypeObject("ROWID")  # no column has it; PEP 249 requires the name
NESTED = TypeObject("NESTED")  # lists, structs and maps; in addition to those of PEP 249

Date = date
Time = time
Timestamp = datetime
Binary = bytes


def DateFromTicks(ticks: float) -> date:  # noqa: N802 - the names are those of PEP 249
    """Return the day, in UTC, of a number of seconds since 1970."""
    return TimestampFromTicks(ticks).date()


def TimeFromTicks(ticks: float) -> time:  # noqa: N802
    """Return the time of day, in UTC, of a number of seconds since 1970."""
    return TimestampFromTicks(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime:  # noqa: N802
    """Return the time, in UTC and without a zone, of a number of seconds since 1970."""
    return datetime.fromtimestamp(ticks, UTC).replace(tzinfo=None)


def type_object_of(kind: Any) -> TypeObject:
    """Return the type object of a type of arro3."""
    from arro3.core import DataType  # imported here: a training needs none of it

    tests = (
        (NUMBER, (DataType.is_numeric, DataType.is_boolean, DataType.is_decimal)),
        (DATETIME, (DataType.is_temporal,)),
        (BINARY, (DataType.is_binary, DataType.is_large_binary, DataType.is_binary_view)),
        (NESTED, (DataType.is_nested,)),
    )
    return next((found for found, checks in tests if any(check(kind) for check in checks)), STRING)
