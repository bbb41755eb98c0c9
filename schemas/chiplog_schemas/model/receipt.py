"""A RECEIPT of the collector's log, decoded: which records a commit covers, who sent them, and when they arrived.

The payload is [time in us, [[sender, first, next, records, nodes or nil], …]]: rows in the order of the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from chiplog_schemas.codec import CodecError, unpack
from chiplog_schemas.limits import NUMBER_LIMIT

_TIME_LIMIT_US = 1 << 61  # no column can hold a later time


class RestrictedSender(NamedTuple):
    """A restricted sender: its 16 bytes, and names or patterns of the nodes that it may deliver for."""

    sender: bytes
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """A decoded RECEIPT.

    runs: (number after the last record, restricted sender) in the order of the log; None for an unrestricted sender.
    Receipts from before there were keys have no runs: all their senders are unrestricted. senders: of the same runs.
    """

    received_us: int
    first: int = 0  # number of the first record that it covers
    runs: tuple[tuple[int, RestrictedSender | None], ...] = ()
    senders: tuple[bytes, ...] = ()

    def speaker_of(self, number: int) -> RestrictedSender | None:
        """Return the restricted sender of a record; None when its sender is unrestricted.

        A record before the covered ones lost its receipt to damage: that costs the receipt, not the record.
        """
        if number < self.first:
            return None
        return next((speaker for end, speaker in self.runs if number < end), None)

    def sender_of(self, number: int) -> bytes | None:
        """Return the sender of a record; None when this receipt does not name it."""
        if number < self.first:
            return None
        runs = zip(self.runs, self.senders, strict=True)
        return next((sender for (end, _), sender in runs if number < end), None)

    def uncommitted(self, numbers: Sequence[int]) -> frozenset[int]:
        """Return the records before the covered ones that belong to a commit which never ended.

        numbers: of all records since the previous receipt. These records were not acknowledged: they are sent again,
        with a receipt that names their senders. If a number is missing between them and the covered ones, they may have
        lost their receipt, and were acknowledged.
        """
        found = set()
        expected = self.first - 1
        for number in reversed(numbers):
            if self.runs and number < self.first:
                if number != expected:
                    break
                found.add(number)
                expected -= 1
        return frozenset(found)


def decode_receipt(payload: bytes | memoryview, number: int = 0) -> Receipt | None:
    """Return a decoded receipt; None when it is invalid. number: of its record."""
    try:
        body = unpack(payload)
    except CodecError:
        return None
    if not (isinstance(body, list) and body and type(body[0]) is int and abs(body[0]) < _TIME_LIMIT_US):
        return None
    rows = body[1] if len(body) > 1 and isinstance(body[1], list) else []
    if not rows or not all(map(_is_run, rows)):
        return Receipt(body[0])
    first = end = number - sum(row[3] for row in rows)
    runs: list[tuple[int, RestrictedSender | None]] = []
    for sender, _, _, count, nodes, *_ in rows:
        end += count
        runs.append((end, None if nodes is None else RestrictedSender(sender, tuple(map(str, nodes)))))
    return Receipt(body[0], first, tuple(runs), tuple(row[0] for row in rows))


def _is_run(row: Any) -> bool:
    """Return True if an entry of a receipt is [sender, first, next, records, nodes or nil]."""
    if not (isinstance(row, list) and len(row) > 4 and isinstance(row[0], bytes)):
        return False
    return _is_number(row[3]) and (row[4] is None or isinstance(row[4], list))


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < NUMBER_LIMIT
