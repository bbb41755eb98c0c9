"""Columns of Python values as Arrow arrays: their type follows from the values."""

import datetime
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from chiplog.media.encoding.arrays import host_array, is_tensor
from chiplog.media.encoding.captured import problem_of
from chiplog.safety.foreign_names import is_stand_in
from chiplog.safety.text import clean_utf8, short_repr
from chiplog.values.media_value import Content, MediaError, MediaValue
from chiplog.values.metrics import Histogram

_NONE = type(None)
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_INT64, _UINT64 = range(-(1 << 63), 1 << 63), range(1 << 64)
_DERIVED: tuple[Any, ...] = (int, float, str, bytes)  # bases of numpy.float64, enums …
# Kinds of numpy's types, and the types of these that Python has too.
_READ_AS = {"b": "?", "i": "i8", "u": "u8", "f": "f8", "U": "U", "S": "S", "M": "M8[us]", "m": "m8[us]"}
_MISSING = ("NaTType", "NAType")  # of pandas


@dataclass(frozen=True, slots=True)
class Column:
    """A column, converted.

    Args:
        array: The values, as arro3 has them.
        kind: "" for plain values, which their Arrow type describes; json for texts of JSON; else the kind of the media
            that the cells refer to, or media for several.
        parts: The media in the cells, by the number of their row.

    """

    array: Any
    kind: str = ""
    parts: list[tuple[int, Content]] = field(default_factory=list)


def build_column(name: str, values: Sequence[Any]) -> Column:
    """Convert the values of a column. Raises MediaError that names the first value without a type."""
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if not kinds <= _PLAIN.keys():
        return _build_other(name, values)
    return _build_plain(values, kinds)


def _build_plain(values: Sequence[Any], kinds: set[type]) -> Column:
    if kinds == {int, float}:
        kinds = {float}
        values = [None if value is None else _to_float(value) for value in values]
    build = _PLAIN[next(iter(kinds))] if len(kinds) == 1 else None
    array = build(values) if build is not None else None if kinds else _text(values)
    return Column(_text([_json(value) for value in values]), "json") if array is None else Column(array)


def _build_other(name: str, values: Sequence[Any]) -> Column:
    """Convert a column with media, containers, or values of derived and foreign types."""
    parts: list[tuple[int, Content]] = []
    found: list[Any] = []
    is_json = False
    for row, value in enumerate(values):
        if isinstance(value, MediaValue):
            content = _content(name, row, value)
            parts.append((row, content))
            value = f"sha256:{hashlib.sha256(content.data).hexdigest()}"
        elif type(value) not in _PLAIN and value is not None:
            try:
                value = _to_plain(value)
            except Exception as error:  # a foreign type may raise anything
                raise MediaError(f"column {short_repr(name)}, row {row}: {problem_of(error)}") from None
            is_json = is_json or isinstance(value, list | dict)
        found.append(value)
    kinds = {type(value) for value in found} - {_NONE}
    n_values = len(found) - found.count(None)
    if parts and len(parts) == n_values:
        media = {content.kind for _, content in parts}
        return Column(_text(found), media.pop() if len(media) == 1 else "media", parts)
    if is_json or parts:
        return Column(_text([_json(value) for value in found]), "json", parts)
    return _build_plain(found, kinds)


def _content(name: str, row: int, value: MediaValue) -> Content:
    try:
        return value.to_content()
    except MediaError as error:
        raise MediaError(f"the {type(value).__name__} in column {short_repr(name)}, row {row}: {error}") from None


def _to_plain(value: Any) -> Any:
    """Return a value of a derived or foreign type as one of a plain type, or as lists and dicts of such."""
    if isinstance(value, Histogram):
        if value.problem:
            raise MediaError(value.problem)
        return {"edges": list(value.edges), "counts": list(value.counts)}
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, datetime.datetime):  # of pandas
        return datetime.datetime.combine(value.date(), value.timetz())
    if isinstance(value, datetime.timedelta):
        return datetime.timedelta(value.days, value.seconds, value.microseconds)
    for kind in _DERIVED:
        if isinstance(value, kind):
            return kind.__str__(value) if kind is str else kind(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset | range):
        return _container_to_plain(value)
    if not is_stand_in(value) and (is_tensor(value) or hasattr(value, "dtype")):
        array = host_array(value)
        if array is not None and array.dtype.kind in _READ_AS:
            return array.astype(_READ_AS[array.dtype.kind], copy=False).tolist()
    raise MediaError(f"a table stores no {type(value).__name__}; add str() of it, a number, or chiplog media")


def _container_to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {clean_utf8(str(key)): _plain_within(entry) for key, entry in value.items()}
    return [_plain_within(entry) for entry in value]


def _plain_within(value: Any) -> Any:
    return value if value is None or type(value) in _PLAIN else _to_plain(value)


def _json(value: Any) -> str | None:
    """Return a value as JSON, None for a missing one. NaN and infinities, which JSON lacks, become null."""
    return None if value is None else json.dumps(_json_value(value), ensure_ascii=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return clean_utf8(value)
    if isinstance(value, list):
        return [_json_value(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _json_value(entry) for key, entry in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, int) or value is None else str(value)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _array(values: Sequence[Any], kind: str, **of_kind: Any) -> Any:
    from arro3.core import Array, DataType  # importing chiplog must not cost it

    return Array(list(values), type=getattr(DataType, kind)(**of_kind))


def _text(values: Sequence[Any]) -> Any:
    try:
        return _array(values, "utf8")
    except UnicodeEncodeError:  # lone surrogates
        return _array([None if value is None else clean_utf8(value) for value in values], "utf8")


def _integers(values: Sequence[Any]) -> Any:
    """Return 64 bits, signed or unsigned; None if a number does not fit."""
    held = [value for value in values if value is not None]
    low, high = min(held), max(held)
    if low in _INT64 and high in _INT64:
        return _array(values, "int64")
    return _array(values, "uint64") if low in _UINT64 and high in _UINT64 else None


def _datetimes(values: Sequence[Any]) -> Any:
    """Return microseconds, in UTC if all have a time zone; None if only some have one."""
    from arro3.core import DataType

    zoned = {value.tzinfo is not None for value in values if value is not None}
    if len(zoned) == 2:
        return None
    epoch = _EPOCH_UTC if zoned.pop() else _EPOCH
    counts = [None if value is None else (value - epoch) // _MICROSECOND for value in values]
    kind = DataType.timestamp("us", tz="UTC") if epoch is _EPOCH_UTC else DataType.timestamp("us")
    return _array(counts, "int64").cast(kind)


def _dates(values: Sequence[Any]) -> Any:
    from arro3.core import DataType

    days = [None if value is None else value.toordinal() - _EPOCH.toordinal() for value in values]
    return _array(days, "int32").cast(DataType.date32())


def _seconds(values: Sequence[Any]) -> Any:
    return _array([None if value is None else value.total_seconds() for value in values], "float64")


def _written(values: Sequence[Any]) -> Any:
    return _text([None if value is None else str(value) for value in values])


# How the values of one type become an array. Another order of types in a column does not change it.
_PLAIN: dict[type, Callable[[Sequence[Any]], Any]] = {
    bool: lambda values: _array(values, "bool"),
    int: _integers,
    float: lambda values: _array(values, "float64"),
    str: _text,
    bytes: lambda values: _array(values, "binary"),
    datetime.datetime: _datetimes,
    datetime.date: _dates,
    datetime.timedelta: _seconds,
    datetime.time: _written,
    Decimal: _written,
}
