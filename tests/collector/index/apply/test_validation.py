"""Values of peers: those that DuckDB accepts, or a TypeError or ValueError that costs one event."""

import json
import math
import struct
from typing import Any

import numpy as np
import pytest

from chiplog_collector.index.apply import validation


def test_text_is_valid_utf_8_whatever_bytes_it_came_from() -> None:
    assert validation.text_of("grüße") == "grüße"
    assert validation.text_of("a\udcffb") == "a\\xffb"


@pytest.mark.parametrize("text", ["NaN", "Infinity", '{"a": -Infinity}', '"\\ud800"', "1e308", "[1, null]"])
def test_json_that_python_reads_becomes_json_that_is_standard(text: str) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found = validation.json_of(text)
    json.loads(found, parse_constant=refuse)
    found.encode("utf-8")


def test_a_number_beyond_float64_is_refused() -> None:
    with pytest.raises(ValueError):
        validation.json_of("1e999")


def test_floats_are_unpacked_bit_for_bit() -> None:
    found = validation.floats_of(struct.pack("<3d", 0.1, -0.0, math.inf))
    assert found == [0.1, 0.0, math.inf]
    assert math.copysign(1, found[1]) == -1


def test_what_is_said_beside_an_end_is_bounded_and_keeps_the_end_of_long_texts() -> None:
    detail = {f"k{n}": n for n in range(100)} | {"k0": "x" * 100_000 + "end", "k1": [1], "k2": None}
    kept = validation.detail_of(detail)
    assert len(kept) <= 32
    assert len(kept["k0"]) == 65_536
    assert kept["k0"].endswith("end")
    assert "k1" not in kept, "no plain value"
    assert kept["k2"] is None


def test_a_producer_and_a_digest_are_bytes_of_their_length() -> None:
    assert validation.uuid_of(b"u" * 16) == b"u" * 16
    assert validation.digest_of(bytes(32)) == "00" * 32


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (validation.text_of, b"bytes"),
        (validation.json_of, None),
        (validation.uuid_of, b"short"),
        (validation.uuid_of, "u" * 16),
        (validation.digest_of, bytes(31)),
        (validation.count_of, -1),
        (validation.count_of, True),
        (validation.count_of, 1 << 63),
        (validation.count_of, 1.0),
        (validation.floats_of, b"odd"),
        (validation.floats_of, [1.0]),
    ],
)
def test_anything_else_is_a_type_error_or_a_value_error(check: Any, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        check(value)


def test_columns_become_lists_and_bytes_become_text() -> None:
    assert validation.as_list(np.array([1, 2])) == [1, 2]
    assert validation.as_list(["a"]) == ["a"]
    assert [validation.plain(value) for value in (b"\x01", 2)] == ["01", "2"]
