"""Receipts: which records they cover, and whose these are. As the receiver writes them: test_commit.py."""

import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.model.receipt import RestrictedSender, decode_receipt

ONE, TWO = b"1" * 16, b"2" * 16
NOW_US = 1_700_000_000_000_000


def test_a_receipt_without_nodes_restricts_no_sender() -> None:
    receipt = decode_receipt(pack([NOW_US, [[ONE, 3, 6, 3], [TWO, 0, 1, 1]]]), 100)
    assert receipt is not None
    assert [receipt.speaker_of(number) for number in (1, 96, 97, 99)] == [None] * 4
    assert receipt.uncommitted(range(90, 100)) == frozenset()


def test_each_record_has_the_sender_of_its_row() -> None:
    receipt = decode_receipt(pack([NOW_US, [[ONE, 3, 6, 3, ["node-a"]], [TWO, 0, 1, 1, None]]]), 100)
    assert receipt is not None
    assert [receipt.sender_of(number) for number in (95, 96, 98, 99)] == [None, ONE, ONE, TWO]
    assert [receipt.speaker_of(number) for number in (96, 99)] == [RestrictedSender(ONE, ("node-a",)), None]


@pytest.mark.parametrize("payload", [b"\xc1", pack([]), pack(["x"]), pack([1 << 61])])
def test_another_payload_is_no_receipt(payload: bytes) -> None:
    assert decode_receipt(payload) is None
