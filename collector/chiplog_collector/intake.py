"""What the receiver knows and decides, pure: slices of agents' spools in, records of the collector's log out.

The log gets each accepted record as it came, then one RECEIPT that says whose they were and when they came. A receipt
covers the records since the one before. Each segment begins with SENDERS, so that a start reads the newest one only.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from chiplog_schemas.codec import CodecError, pack, unpack
from chiplog_schemas.record import Damage, Kind, Record, scan

_QUARANTINE_BYTES_MAX = 65_536  # of a damaged slice: enough to see what it was
_ACCEPTED_KINDS = frozenset({Kind.BLOCK})


@dataclass(slots=True)
class Accepted:
    """One thing to append to the log: a record as it came, or a payload of our own."""

    kind: int
    record: Record | None = None
    payload: bytes = b""


class Intake:
    """Between two commits: what was taken, and from whom.

    next_numbers: of every sender, as the log has it.
    """

    def __init__(self, next_numbers: dict[bytes, int]) -> None:
        self.next_numbers = next_numbers
        self.quarantined = 0
        self.waiting_bytes = 0
        self._taken: dict[bytes, list[int]] = {}  # sender -> [first, next, records]

    def take(self, sender: bytes, first: int, last: int, payload: bytes | memoryview) -> list[Accepted]:
        """Take a slice: return its sound records, and what is no record as quarantine, to be appended in order."""
        accepted: list[Accepted] = []
        for item in scan(payload):
            if isinstance(item, Damage):
                bad = bytes(payload[item.start : min(item.end, item.start + _QUARANTINE_BYTES_MAX)])
                accepted.append(self._quarantine(sender, item.reason, bad))
            elif item.kind not in _ACCEPTED_KINDS:
                bad = bytes(item.payload[:_QUARANTINE_BYTES_MAX])
                accepted.append(self._quarantine(sender, f"record of kind {item.kind} has no place here", bad))
            else:
                accepted.append(Accepted(item.kind, item))
        span = self._taken.setdefault(sender, [first, first, 0])
        span[1] = max(span[1], last + 1)
        span[2] += len(accepted)
        self.waiting_bytes += len(payload)
        return accepted

    def gap(self, sender: bytes, first: int, last: int, reason: str) -> Accepted:
        """Note that a sender's numbers can never come."""
        return Accepted(Kind.GAP, payload=pack([sender, first, last, reason]))

    def receipt(self, now_us: int) -> Accepted:
        """Close what was taken since the last receipt. `now_us`: the time that rebuilds will see."""
        rows = [[sender, first, next_number, count] for sender, (first, next_number, count) in self._taken.items()]
        return Accepted(Kind.RECEIPT, payload=pack([now_us, rows]))

    def committed(self) -> dict[bytes, int]:
        """Return next number by sender of what the commit that just ended made durable."""
        done = {sender: span[1] for sender, span in self._taken.items()}
        for sender, next_number in done.items():
            self.next_numbers[sender] = max(next_number, self.next_numbers.get(sender, 0))
        self._taken = {}
        self.waiting_bytes = 0
        return done

    def senders(self) -> Accepted:
        """Return what begins a segment: the next number of every sender."""
        return Accepted(Kind.SENDERS, payload=pack([[s, n] for s, n in self.next_numbers.items()]))

    def _quarantine(self, sender: bytes, reason: str, data: bytes) -> Accepted:
        self.quarantined += 1
        return Accepted(Kind.QUARANTINE, payload=pack([sender, reason, data]))


def recover_senders(records: Iterable[Record | Damage]) -> dict[bytes, int]:
    """Return next number by sender from the newest segment's records."""
    next_numbers: dict[bytes, int] = {}
    for record in records:
        if isinstance(record, Damage) or record.kind not in (Kind.SENDERS, Kind.RECEIPT):
            continue
        try:
            body = unpack(record.payload)
            rows = body if record.kind == Kind.SENDERS else [[row[0], row[2]] for row in body[1]]
            for sender, next_number in rows:
                next_numbers[sender] = max(next_number, next_numbers.get(sender, 0))
        except (CodecError, ValueError, TypeError, IndexError):
            continue  # a record that is sound but not what we write: senders send again, the index slices
    return next_numbers


@dataclass(frozen=True, slots=True)
class Receipt:
    """A decoded RECEIPT."""

    received_us: int


def decode_receipt(payload: bytes | memoryview) -> Receipt | None:
    """Return a receipt's time; None when it is none."""
    try:
        body = unpack(payload)
    except CodecError:
        return None
    if isinstance(body, list) and body and type(body[0]) is int:
        return Receipt(body[0])
    return None
