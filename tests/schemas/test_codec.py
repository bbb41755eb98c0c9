"""The one module that touches msgpack: plain values round trip, hostile bytes raise one error."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog_schemas.codec import CodecError, pack, unpack

text = st.text(alphabet=st.characters(exclude_categories=("Cs",))) | st.just("broken \udcff bytes")
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | text | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text | st.integers(0, 99), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_plain_values_round_trip_bit_for_bit(value: object) -> None:
    packed = pack(value)
    assert pack(unpack(packed)) == packed


@given(st.integers(0, (1 << 64) - 1))
def test_every_bit_of_a_float_is_kept(bits: int) -> None:
    packed = b"\xcb" + struct.pack(">Q", bits)
    assert pack(unpack(packed)) == packed


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_codec_error(data: bytes) -> None:
    try:
        unpack(data)
    except CodecError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\x91" * 5_000,
        b"\x81\x90\x01",
        b"\xdd\x00\x40\x00\x00" * 400,
        b"\xdf\xff\xff\xff\xff",
        b"\xc7\x00\x05",
        b"\xd6\xff\x00\x00\x00\x01",
    ],
    ids=[
        "empty",
        "never used",
        "two values",
        "too deep",
        "list as a key",
        "claims",
        "huge map",
        "extension",
        "timestamp",
    ],
)
def test_what_is_no_plain_value_is_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError):
        unpack(data)


@pytest.mark.parametrize("value", [object(), 1 << 64, {1, 2}, "\ud800", 1j], ids=lambda value: type(value).__name__)
def test_a_value_that_msgpack_cannot_hold_is_a_codec_error(value: object) -> None:
    with pytest.raises(CodecError):
        pack(value)
