"""Convert a column of Arrow to Python values without DuckDB, whose import and first connection take 100 ms.

Only types whose values are proven equal to DuckDB's are converted. DuckDB converts everything else.
"""

from typing import Any

_HUGEINT_DIGITS = 37  # arro3 truncates a decimal to 38 digits, and DuckDB puts a HUGEINT of 39 into one


def python_values(column: Any) -> list[Any] | None:
    """Return the values of an arro3 ChunkedArray, or None if DuckDB must convert them."""
    from arro3.core import DataType

    kind = column.type
    if column.null_count == len(column):
        return [None] * len(column)
    # safeguard: extension-types-by-duckdb
    if _has_extension(column.field) or (DataType.is_list(kind) and _has_extension(kind.value_field)):
        return None  # a BIGNUM, for example, is stored as bytes
    if _is_simple(kind) or (DataType.is_list(kind) and _is_simple(kind.value_type)):
        return list(column.to_pylist())
    if kind == DataType.timestamp("us"):
        return _times(column)
    if kind == DataType.decimal128(38, 0):
        return _integers(column)
    return None


def _has_extension(field: Any) -> bool:
    """Return True if Arrow stores values of another type in a field. JSON is text in both."""
    extension: str = field.metadata_str.get("ARROW:extension:name", "arrow.json")
    return extension != "arrow.json"


def _is_simple(kind: Any) -> bool:
    from arro3.core import DataType

    return any(
        is_kind(kind)
        for is_kind in (
            DataType.is_float64,
            DataType.is_string,
            DataType.is_integer,
            DataType.is_boolean,
            DataType.is_null,
            DataType.is_float32,
            DataType.is_binary,
        )
    )


def _times(column: Any) -> list[Any] | None:
    """Return times; None if one is beyond Python's years, for which arro3 returns None or raises."""
    try:
        values = list(column.to_pylist())
    except ValueError:
        return None
    return values if values.count(None) == column.null_count else None  # safeguard: odd-times-by-duckdb


def _integers(column: Any) -> list[Any] | None:
    """Return the integers of a HUGEINT, which Arrow has as a decimal; None if one may be truncated."""
    bound = 10**_HUGEINT_DIGITS
    values = [None if value is None else int(value) for value in column.to_pylist()]
    # safeguard: long-integers-by-duckdb
    return None if any(value is not None and not -bound < value < bound for value in values) else values
