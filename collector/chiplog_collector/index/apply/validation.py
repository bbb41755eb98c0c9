"""Validate and clean decoded values of peers: return values that DuckDB accepts, or raise TypeError or ValueError."""

import json
import re
from typing import Any

import numpy as np

from chiplog_schemas.storage.content_files import DIGEST_BYTES

_DETAILS_MAX = 32  # entries that a peer sends with an end: a traceback, and a few words
_DETAIL_NAME_CHARS_MAX = 128
_DETAIL_CHARS_MAX = 65_536
_HALF_CHARACTERS = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    r"""Return text that DuckDB accepts: valid UTF-8, other bytes as \xNN."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def text_of(value: Any) -> str:
    """Return a text, cleaned."""
    if not isinstance(value, str):
        raise TypeError(f"a text must be str, not {type(value).__name__}")
    return clean(value)


def optional_text_of(value: Any) -> str | None:
    """Return a text, cleaned, or None."""
    return None if value is None else text_of(value)


def json_of(value: Any) -> str:
    """Return a JSON text that DuckDB's JSON type accepts. NaN and Infinity, which JSON lacks, become strings."""
    return json_text(json.loads(text_of(value), parse_constant=lambda constant: constant))


def json_text(value: Any) -> str:
    """Write a value as JSON that DuckDB accepts: one invalid row would break its view for every reader.

    Lone surrogates, which Python writes as escapes that DuckDB rejects, become U+FFFD. Raises ValueError for a number
    beyond float64, which only a text like 1e999 yields.
    """
    return _HALF_CHARACTERS.sub("\ufffd", json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False))


def detail_of(detail: dict[Any, Any]) -> dict[str, Any]:
    """Return the details that a peer sends with the end of a label, limited: plain values, the tail of long texts."""
    kept: dict[str, Any] = {}
    for name, value in list(detail.items())[:_DETAILS_MAX]:
        if isinstance(value, str):
            kept[str(name)[:_DETAIL_NAME_CHARS_MAX]] = clean(value[-_DETAIL_CHARS_MAX:])
        elif value is None or isinstance(value, bool | int | float):
            kept[str(name)[:_DETAIL_NAME_CHARS_MAX]] = value
    return kept


def uuid_of(value: Any) -> bytes:
    """Return a producer's 16 bytes."""
    if not (isinstance(value, bytes) and len(value) == 16):
        raise TypeError("a producer is 16 bytes")
    return value


def digest_of(value: Any) -> str:
    """Return a content's SHA-256, 32 bytes, as hex digits."""
    if not (isinstance(value, bytes) and len(value) == DIGEST_BYTES):
        raise TypeError(f"a SHA-256 is {DIGEST_BYTES} bytes")
    return value.hex()


def optional_digest_of(value: Any) -> str | None:
    """Return a content's SHA-256 as hex digits, or None."""
    return None if value is None else digest_of(value)


def count_of(value: Any) -> int:
    """Return a number of bytes, not negative."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is not a number of bytes")
    return value


def floats_of(data: Any) -> list[float]:
    """Return float64 values that were packed little-endian."""
    if not isinstance(data, bytes) or len(data) % 8:
        raise TypeError("numbers are packed as float64")
    floats: list[float] = np.frombuffer(data, dtype="<f8").tolist()
    return floats


def as_list(column: Any) -> list[Any]:
    """Return a decoded column as a list of plain values."""
    values: list[Any] = column.tolist() if isinstance(column, np.ndarray) else column
    return values


def plain(value: Any) -> str:
    """Return a value that JSON lacks as text."""
    return value.hex() if isinstance(value, bytes) else str(value)
