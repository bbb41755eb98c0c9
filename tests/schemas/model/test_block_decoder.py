"""Blocks are decoded: bytes that are no block only raise BlockError."""

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiplog_schemas.codec import pack, unpack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.block_format import BLOCK_VERSION, BlockError, NewerBlockError, keys_of
from chiplog_schemas.model.events import FIELDS, MATRIX_KINDS, Column, EventKind, encode
from tests.schemas.make_vectors import LOSS_KEYS, PRODUCER_A, TS, block, doubles
from tests.support.blocks import block_to_rows

PREFIX = struct.Struct("<IHH")


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_a_block_or_a_block_error(data: bytes, with_prefix: bool) -> None:
    _decode_or_block_error(PREFIX.pack(max(0, len(data) - 40), 1, 0) + data if with_prefix else data)


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_block_is_a_block_or_a_block_error(draw: st.DataObject) -> None:
    data = bytearray(block())
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    _decode_or_block_error(bytes(data[: draw.draw(st.sampled_from([len(data), len(data) - 1, len(data) // 2]))]))


hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 20)
    | st.just(1 << 62)
    | st.sampled_from(["seq", "o", "<i8", "<f8", b""]),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=400)
@given(st.data())
def test_a_block_whose_header_lies_is_a_block_or_a_block_error(draw: st.DataObject) -> None:
    # Invariant: one place of a sound header replaced by anything at all; what decodes has columns of the right shape.
    data = block()
    header_length, _, _ = PREFIX.unpack_from(data)
    header = unpack(data[8 : 8 + header_length])
    place: Any = header
    while True:
        index = draw.draw(st.integers(0, len(place) - 1))
        if isinstance(place[index], list) and place[index] and draw.draw(st.integers(0, 3)):
            place = place[index]
            continue
        place[index] = draw.draw(hostile)
        break
    packed = pack(header)
    start = 8 + header_length + -(8 + header_length) % 8
    padding = bytes(-(8 + len(packed)) % 8)
    _decode_or_block_error(PREFIX.pack(len(packed), 1, 0) + packed + padding + data[start:])


def _decode_or_block_error(data: bytes) -> None:
    try:
        decoded = decode_block(data)
    except BlockError:
        return
    rows = [(producer, seq) for producer, seq, _ in block_to_rows(decoded)]
    named = [(uuid, seq) for uuid, ranges in decoded.producers for a, b in ranges for seq in range(a, b + 1)]
    assert rows == sorted(named)
    for group in decoded.groups:
        assert isinstance(group.keys_bin, bytes)
        if group.kind in MATRIX_KINDS:
            assert group.columns["values"].shape == (len(group.seq), len(keys_of(group.keys_bin)))
        for name, column in FIELDS.get(group.kind, ()):
            if column is Column.INT:
                assert group.columns[name].dtype == "<i8"


def _with_ranges(ranges: list[int]) -> bytes:
    builder = BlockBuilder()
    for seq in (3, 4, 6):
        builder.add(PRODUCER_A, seq, encode(EventKind.METRICS, TS, seq, LOSS_KEYS, doubles(1, 2)))
    data = builder.build(TS)
    header_length, _, _ = PREFIX.unpack_from(data)
    header = unpack(data[8 : 8 + header_length])
    assert header[1] == [[PRODUCER_A, [3, 4, 6, 6]]]
    header[1][0][1] = ranges
    packed = pack(header)
    start = 8 + header_length + -(8 + header_length) % 8
    return PREFIX.pack(len(packed), 1, 0) + packed + bytes(-(8 + len(packed)) % 8) + data[start:]


@pytest.mark.parametrize(
    "ranges", [[3, 5], [3, 4, 7, 7], [3, 4, 6, 1 << 62], [3, 4], [], [4, 3, 6, 6], [3, 4, 4, 4], [3]]
)
def test_ranges_that_are_not_those_of_the_rows_are_refused(ranges: list[int]) -> None:
    assert decode_block(_with_ranges([3, 4, 6, 6])).producers == [(PRODUCER_A, [(3, 4), (6, 6)])]
    with pytest.raises(BlockError):
        decode_block(_with_ranges(ranges))


def test_a_newer_version_is_told_apart_from_garbage() -> None:
    data = bytearray(block())
    data[4:6] = struct.pack("<H", BLOCK_VERSION + 1)
    with pytest.raises(NewerBlockError, match="upgrade"):
        decode_block(data)
    data[4:6] = bytes(2)
    with pytest.raises(BlockError) as caught:
        decode_block(data)
    assert not isinstance(caught.value, NewerBlockError)
