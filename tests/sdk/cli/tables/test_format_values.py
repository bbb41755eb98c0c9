"""Single values as text: durations, numbers, what a terminal must not get, and values for json and csv."""

import csv
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from chiplog_cli.tables.format_values import (
    UTC_ZONE,
    console_text,
    count_nonfinite,
    csv_field,
    csv_value,
    duration_text,
    number_text,
    plain_value,
    printable,
    seconds_text,
)
from tests.support.safeguard import proves

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 600_000)


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.24, "4.2s"), (185, "3m05s"), (7620, "2h07m"), (273_600, "3d04h"), (0, "0.0s")]
)
def test_durations_are_short(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((123456789.0, "123456789"), (1.0, "1"), (-3, "-3"), (1 / 3, "0.333333")),
        *((9.143876219677727e300, "9.14388e+300"), (1.5e-308, "1.5e-308")),
        *((float("nan"), "nan"), (float("-inf"), "-inf")),
    ],
)
def test_whole_numbers_are_shown_in_full(value, text):
    assert number_text(value) == text


def test_text_of_others_cannot_steer_the_terminal():
    assert printable("a\x1b[2Jb\nc\td") == "a\\x1b[2Jb⏎c  d"
    assert console_text("a\x1b]0;title\x07b\x1b[31mc\x1b[Hd\x08", True) == "ab\x1b[31mcd\x1b[0m"
    assert console_text("a\x1b[31mc\x1b[H", False) == "ac"


@proves("decimal-stays-exact", "a decimal loses no digit", value="number")
@pytest.mark.parametrize(
    ("value", "plain", "csv"),
    [
        (None, None, ""),
        (True, True, "true"),
        (7, 7, 7),
        (0.1, 0.1, "0.1"),
        (float("nan"), None, "nan"),
        (float("-inf"), None, "-inf"),
        (Decimal("1.50"), 1.5, "1.50"),
        (Decimal("0.1000000000000000000001"), "0.1000000000000000000001", "0.1000000000000000000001"),
        (MOMENT, "2026-01-02T03:04:05.600000Z", "2026-01-02T03:04:05.600000Z"),
        (date(2026, 1, 2), "2026-01-02", "2026-01-02"),
        (time(3, 4), "03:04:00", "03:04:00"),
        (timedelta(minutes=1), 60.0, 60.0),
        (b"\xab", "ab", "ab"),
        ([float("inf"), b"\x00"], [None, "00"], '[null, "00"]'),
        ({1: (MOMENT.date(), "ü")}, {"1": ["2026-01-02", "ü"]}, '{"1": ["2026-01-02", "ü"]}'),
        (UUID(int=1), str(UUID(int=1)), str(UUID(int=1))),
    ],
)
def test_values_for_json_and_csv(value, plain, csv):
    assert plain_value(value) == plain
    assert csv_value(value) == csv


@proves(
    "empty-text-is-quoted", "an empty text in csv is no missing value", part='(text == "" and value is not None) or '
)
@pytest.mark.parametrize(
    ("value", "field"),
    [
        *((None, ""), ("", '""'), ("a", "a"), (" a", '" a"'), ('a"b', '"a""b"'), ("a,b", '"a,b"'), ("a\rb", '"a\rb"')),
        *((b"", '""'), (["a"], '"[""a""]"'), (1.5, "1.5"), (True, "true")),
    ],
)
def test_a_field_of_csv_is_quoted_where_it_must_be_and_where_it_is_empty_but_not_missing(value, field):
    assert csv_field(value) == field
    assert next(csv.reader([f"{csv_field(value)},x"])) == [str(csv_value(value)), "x"]


@pytest.mark.parametrize(
    ("value", "count"),
    [(None, 0), (1.5, 0), (float("nan"), 1), ([float("inf"), {"x": float("nan"), "y": "nan"}], 2), ("nan", 0)],
)
def test_numbers_that_json_lacks_are_counted(value, count):
    assert count_nonfinite(value) == count


def test_times_name_their_zone():
    assert UTC_ZONE.text(MOMENT) == "2026-01-02 03:04:05.600000"
    assert UTC_ZONE.text(MOMENT, "minutes") == "2026-01-02 03:04"
    assert UTC_ZONE.stamp(MOMENT, "seconds", " ") == "2026-01-02 03:04:05Z"
    assert (UTC_ZONE.name([MOMENT, MOMENT]), UTC_ZONE.name([])) == ("UTC", "")


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0s"), (0.25, "250ms"), (3.14159, "3.14s"), (2e-6, "2µs")])
def test_short_times_have_three_digits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
