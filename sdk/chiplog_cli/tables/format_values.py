"""Format single values: times in a zone, durations, numbers, text without terminal control, values for json and csv.

Times are UTC, or with --local in this machine's zone. csv and json write bytes as hexadecimal. JSON has neither NaN nor
infinity: json has null there, csv `nan`, `inf` and `-inf`.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

_EXACT_MAX = 1e15  # a float holds every whole number up to here and a little beyond
_PLAIN = frozenset((str, int, bool, type(None)))  # the same in JSON
_NEEDS_QUOTES = re.compile(r'[",\r\n]|^\s|\s$')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


class Zone:
    """Formats times in UTC or in this machine's zone. Times are naive UTC, as in query results."""

    def __init__(self, *, is_local: bool) -> None:
        self.is_local = is_local

    def shown(self, moment: datetime) -> datetime:
        """Return a time with its zone."""
        moment = moment.replace(tzinfo=UTC)
        if not self.is_local:
            return moment
        try:
            return moment.astimezone()
        except (OverflowError, ValueError):  # 'infinity' has no local time
            return moment

    def text(self, moment: datetime, precision: str = "auto") -> str:
        """Return a time without its zone. precision: as datetime.isoformat; auto writes every digit that is not 0."""
        return self.shown(moment).replace(tzinfo=None).isoformat(sep=" ", timespec=precision)

    def name(self, moments: Iterable[datetime]) -> str:
        """Return the zone's name if these times share one, else ''."""
        names = {self.shown(moment).strftime("%Z") for moment in moments}
        return names.pop() if len(names) == 1 else ""

    def stamp(self, moment: datetime, precision: str = "auto", sep: str = "T") -> str:
        """Return ISO 8601: UTC with Z, a local time with its offset."""
        return self.shown(moment).isoformat(sep=sep, timespec=precision).replace("+00:00", "Z")


UTC_ZONE, LOCAL_ZONE = Zone(is_local=False), Zone(is_local=True)


def common_timezone(is_local: bool) -> Zone:
    """Return the zone for --local, else UTC."""
    return LOCAL_ZONE if is_local else UTC_ZONE


def duration_text(seconds: float) -> str:
    """Return 4.2s, 3m05s, 2h07m or 3d04h."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 86_400}d{whole // 3600 % 24:02d}h"


def seconds_text(seconds: float) -> str:
    """Return a short time with three digits: 3.14s, 250ms or 2µs."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{float(f'{seconds * factor:.3g}'):g}{unit}"  # 1000, where .3g has 1e+03
    return "0s"


def number_text(value: float) -> str:
    """Return a number for the page of a run: whole numbers in full, others with six significant digits."""
    return str(int(value)) if abs(value) < _EXACT_MAX and value == int(value) else f"{value:.6g}"


def printable(text: str) -> str:
    """Return text without characters that would control the terminal or break the line."""
    return "".join(c if c.isprintable() or c == " " else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return {"\n": "⏎", "\t": "  ", "\r": "\\r"}.get(character, f"\\x{ord(character):02x}")


def console_text(line: str, keep_colours: bool) -> str:
    """Return a line of a training without terminal control; keep colours if `keep_colours`."""
    parts = _COLOUR.split(line)
    colours = [*_COLOUR.findall(line), ""] if keep_colours else [""] * len(parts)
    text = "".join(
        "".join(c for c in _SEQUENCE.sub("", part) if c.isprintable() or c == "\t") + colour
        for part, colour in zip(parts, colours, strict=True)
    )
    return text + "\x1b[0m" if keep_colours and len(parts) > 1 else text


def plain_value(value: Any, zone: Zone = UTC_ZONE, *, is_json: bool = True) -> Any:
    """Return a value for JSON: times as ISO 8601, bytes as hexadecimal, and None for NaN unless `is_json` is false."""
    if type(value) in _PLAIN or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) or not is_json else None
    if isinstance(value, Decimal):
        number = float(value)
        return number if Decimal(repr(number)) == value else str(value)  # safeguard: decimal-stays-exact
    if isinstance(value, datetime):
        return zone.stamp(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain_value(item, zone, is_json=is_json) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, zone, is_json=is_json) for item in value]
    return str(value)


def count_nonfinite(value: Any) -> int:
    """Return how many NaN and infinite numbers a value has, for which JSON has null."""
    if type(value) in _PLAIN:
        return 0
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return sum(map(count_nonfinite, value.values()))
    return sum(map(count_nonfinite, value)) if isinstance(value, list | tuple) else 0


def csv_value(value: Any, zone: Zone = UTC_ZONE) -> Any:
    """Return a value for csv: an empty text for NULL, JSON for lists and structs."""
    if isinstance(value, float | Decimal):
        return str(value)
    plain = plain_value(value, zone)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, list | dict):
        return json.dumps(plain, ensure_ascii=False)
    return "" if plain is None else plain


def csv_field(value: Any, zone: Zone = UTC_ZONE) -> str:
    """Return a field of csv: nothing for NULL, quotes for an empty text and where a reader needs them."""
    kind = type(value)  # a large file has many millions of values: the usual ones first
    if kind is int or kind is float:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is datetime:
        return zone.stamp(value)
    text = value if kind is str else str(csv_value(value, zone))
    if (text == "" and value is not None) or _NEEDS_QUOTES.search(text):  # safeguard: empty-text-is-quoted
        return '"' + text.replace('"', '""') + '"'
    return text
