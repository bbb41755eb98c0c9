"""A block that is decoded and encoded again is the same block."""

import numpy as np
import pytest

from chiplog_schemas.model.block_decoder import Block, decode_block
from chiplog_schemas.model.block_encoder import encode_block
from tests.schemas.make_vectors import block

pytestmark = pytest.mark.pure


def assert_same(one: Block, other: Block) -> None:
    assert (one.created_ts, one.producers, len(one.groups)) == (other.created_ts, other.producers, len(other.groups))
    for left, right in zip(one.groups, other.groups, strict=True):
        assert (left.kind, left.keys_bin, list(left.columns)) == (right.kind, right.keys_bin, list(right.columns))
        for a, b in ((left.producer, right.producer), (left.seq, right.seq), (left.ts, right.ts)):
            assert np.array_equal(a, b)
        for name, values in left.columns.items():
            if isinstance(values, np.ndarray):
                assert values.tobytes() == right.columns[name].tobytes(), "to the bits of a NaN"
            else:
                assert values == right.columns[name]


def test_a_block_is_decoded_from_what_it_was_encoded_to() -> None:
    before = decode_block(block())
    after = decode_block(encode_block(before))
    assert_same(before, after)
    assert encode_block(after) == encode_block(before)
