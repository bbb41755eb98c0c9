"""The layout of blocks: one group for each tuple of keys, its columns at multiples of eight."""

import struct

from chiplog_schemas.codec import unpack
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.block_format import BLOCK_VERSION, keys_of
from chiplog_schemas.model.events import EventKind
from tests.schemas.make_vectors import PRODUCER_A, PRODUCER_B, block

PREFIX = struct.Struct("<IHH")


def test_events_of_all_producers_that_share_keys_are_one_group() -> None:
    decoded = decode_block(block())
    (group,) = [group for group in decoded.groups if group.kind == EventKind.METRICS]
    assert keys_of(group.keys_bin) == ("train/loss", "train/grad_norm")
    assert group.columns["values"].shape == (3, 2)
    assert group.columns["step"].tolist() == [0, 1, 1]
    assert [decoded.producers[index][0] for index in group.producer] == [PRODUCER_A, PRODUCER_A, PRODUCER_B]
    assert decoded.producers == [(PRODUCER_A, [(0, 2), (4, 4)]), (PRODUCER_B, [(5, 6), (9, 9)])]


def test_columns_begin_at_multiples_of_eight() -> None:
    data = block()
    header_length, version, flags = PREFIX.unpack_from(data)
    assert (version, flags) == (BLOCK_VERSION, 0)
    _, _, groups = unpack(data[8 : 8 + header_length])
    assert all(offset % 8 == 0 for *_, columns in groups for _, _, offset, _ in columns)
