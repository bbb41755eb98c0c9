"""The receiver's state and decisions, pure: slices of agents' spools in, records of the collector's log out.

The log gets each accepted record in order of arrival, then one RECEIPT with the senders and the time of arrival. Its
rows are runs of records in the order of the log, and the last run ends at the receipt. Each segment begins with
SENDERS, so that a start reads only the newest one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chiplog_schemas.codec import CodecError, pack, unpack
from chiplog_schemas.limits import NUMBER_LIMIT, SENDERS_MAX
from chiplog_schemas.protocol.messages import SENDER_BYTES
from chiplog_schemas.storage.record import CorruptRange, Kind, Record, scan_records

_QUARANTINE_BYTES_MAX = 65_536  # of a damaged slice: enough to identify it
_ACCEPTED_KINDS = frozenset({Kind.BLOCK})
OWN_SENDER = bytes(SENDER_BYTES)  # in receipts of records that no agent has sent


@dataclass(slots=True)
class _SenderBatch:
    """Records of consecutive slices of one sender. `next`: the number after its last one."""

    sender: bytes
    first: int
    nodes: tuple[str, ...] | None
    next: int = -1
    records: int = 0

    def __post_init__(self) -> None:
        self.next = max(self.next, self.first)


@dataclass(slots=True)
class LogEntry:
    """One thing to append to the log: a record as it arrived, or a payload of the receiver."""

    kind: int
    record: Record | None = None
    payload: bytes = b""


class CommitBuilder:
    """The records that were accepted since the last commit, and their senders.

    next_numbers: of every sender in the log. lost: the senders that the log has declared lost.
    """

    def __init__(self, next_numbers: dict[bytes, int], lost: Iterable[bytes] = ()) -> None:
        self.next_numbers = next_numbers
        self._lost = set(lost)
        self._said: list[tuple[bytes, bool]] = []  # presences since the last commit
        self.quarantined = 0
        self.waiting_bytes = 0
        self._runs: list[_SenderBatch] = []

    def add_slice(
        self,
        sender: bytes,
        first: int,
        last: int,
        payload: bytes | memoryview,
        nodes: tuple[str, ...] | None = None,
    ) -> list[LogEntry]:
        """Accept a slice. Return its valid records, and the rest as quarantine records, in the order to append them.

        nodes: names or patterns that the sender may currently deliver for; None: all.
        """
        accepted: list[LogEntry] = []
        for item in scan_records(payload):
            if isinstance(item, CorruptRange):
                bad = bytes(payload[item.start : min(item.end, item.start + _QUARANTINE_BYTES_MAX)])
                accepted.append(self._quarantine(sender, item.reason, bad))
            elif item.kind not in _ACCEPTED_KINDS:
                bad = bytes(item.payload[:_QUARANTINE_BYTES_MAX])
                accepted.append(self._quarantine(sender, f"record of kind {item.kind} is not allowed here", bad))
            else:
                accepted.append(LogEntry(item.kind, item))
        run = self._runs[-1] if self._runs else None
        if run is None or (run.sender, run.nodes) != (sender, nodes):  # safeguard: records-judged-by-sender
            run = _SenderBatch(sender, first, nodes)
            self._runs.append(run)
        run.next = max(run.next, last + 1)
        run.records += len(accepted)
        self.waiting_bytes += len(payload)
        return accepted

    def add_gap(self, sender: bytes, first: int, last: int, reason: str) -> LogEntry:
        """Note that a sender's numbers can never arrive: they count as received."""
        if not self._runs or self._runs[-1].sender != sender:
            self._runs.append(_SenderBatch(sender, first, None))
        run = self._runs[-1]
        run.next = max(run.next, last + 1)
        run.records += 1
        return LogEntry(Kind.GAP, payload=pack([sender, first, last, reason]))

    def add_file(self, sender: bytes, digest: bytes, n_bytes: int, nodes: tuple[str, ...] | None) -> LogEntry:
        """Note that a sender's file is on stable storage. This uses no number of the sender's log."""
        if not self._runs or self._runs[-1].sender != sender or self._runs[-1].nodes != nodes:
            self._runs.append(_SenderBatch(sender, self.next_numbers.get(sender, 0), nodes))
        self._runs[-1].records += 1
        return LogEntry(Kind.STORED, payload=pack([sender, digest, n_bytes]))

    def add_presence(self, sender: bytes, payload: list[Any]) -> LogEntry:
        """Note a conclusion of the receiver about an agent. It covers none of the agent's numbers."""
        if not self._runs or self._runs[-1].sender != sender:
            had = self.next_numbers.get(sender, 0)
            self._runs.append(
                _SenderBatch(sender, max([had, *(run.next for run in self._runs if run.sender == sender)]), None)
            )
        self._runs[-1].records += 1
        self._said.append((sender, bool(payload[0])))
        return LogEntry(Kind.PRESENCE, payload=pack([sender, *payload]))

    def add_change(self, payload: bytes) -> LogEntry:
        """Note a change to what was recorded, which the index passes on from a client."""
        return self._add_own(Kind.MANAGE, payload)

    def add_own_block(self, block: bytes) -> LogEntry:
        """Note a block of the collector's own events."""
        return self._add_own(Kind.BLOCK, block)

    def _add_own(self, kind: int, payload: bytes) -> LogEntry:
        if not self._runs or self._runs[-1].sender != OWN_SENDER:
            self._runs.append(_SenderBatch(OWN_SENDER, 0, None))
        self._runs[-1].records += 1
        return LogEntry(kind, payload=payload)

    def renew(self, sender: bytes, nodes: tuple[str, ...]) -> None:
        """Note the nodes of a sender's key without a record: refused records that they cover are applied."""
        self._runs.append(_SenderBatch(sender, self.next_numbers.get(sender, 0), nodes))

    def receipt_record(self, now_us: int) -> LogEntry:
        """Complete the records since the last receipt with a receipt. `now_us`: the time that rebuilds will see."""
        rows = [
            [run.sender, run.first, run.next, run.records, None if run.nodes is None else list(run.nodes)]
            for run in self._runs
        ]
        return LogEntry(Kind.RECEIPT, payload=pack([now_us, rows]))

    def committed(self) -> dict[bytes, int]:
        """Return the next number by sender that the commit which just ended made durable."""
        done: dict[bytes, int] = {}
        for run in self._runs:
            if run.next > run.first:
                done[run.sender] = max(run.next, done.get(run.sender, 0))
        for sender, next_number in done.items():
            self.next_numbers[sender] = max(next_number, self.next_numbers.pop(sender, 0))  # reinsert at the end
        while len(self.next_numbers) > SENDERS_MAX:  # safeguard: senders-record-fits
            gone = next(iter(self.next_numbers))  # silent for the longest time
            del self.next_numbers[gone]
            self._lost.discard(gone)
        for sender, is_here in self._said:
            (self._lost.discard if is_here else self._lost.add)(sender)
        self._runs, self._said = [], []
        self.waiting_bytes = 0
        return done

    def senders_record(self) -> LogEntry:
        """Return the first record of a segment: the next number of every sender, and whether it is lost."""
        rows = [[s, n, True] if s in self._lost else [s, n] for s, n in self.next_numbers.items()]
        return LogEntry(Kind.SENDERS, payload=pack(rows))

    def _quarantine(self, sender: bytes, reason: str, data: bytes) -> LogEntry:
        self.quarantined += 1
        return LogEntry(Kind.QUARANTINE, payload=pack([sender, reason, data]))


def recover_senders(records: Iterable[Record | CorruptRange]) -> dict[bytes, int]:
    """Return next number by sender from the newest segment's records.

    A receipt counts only with all the records that it covers: a power failure may preserve the end of a commit and not
    its beginning, and the missing records must be sent again.
    """
    next_numbers: dict[bytes, int] = {}
    n_covered = 0
    for record in records:
        if isinstance(record, CorruptRange):
            continue
        if record.kind not in (Kind.SENDERS, Kind.RECEIPT):
            n_covered += 1
            continue
        try:
            body = unpack(record.payload)
            rows = body
            if record.kind == Kind.RECEIPT:
                is_whole = n_covered >= sum(row[3] for row in body[1])
                n_covered = 0
                # Incomplete: the first row of each sender counts.
                # safeguard: receipt-needs-whole-commit
                rows = [[row[0], row[2]] for row in body[1]] if is_whole else _firsts(body[1])
            for sender, next_number, *_ in rows:
                if _is_sender(sender) and _is_number(next_number):
                    next_numbers[sender] = max(next_number, next_numbers.get(sender, 0))
        except (CodecError, ValueError, TypeError, LookupError):
            continue  # a valid record that chiplog does not write: senders send again, and the index drops duplicates
    return next_numbers


def recover_lost(records: Iterable[Record | CorruptRange]) -> set[bytes]:
    """Return the senders that the log declares lost: from a segment that begins with SENDERS, and everything after it.

    A presence counts only with its receipt, as in the index. One that a damaged log lacks is recorded again.
    """
    lost: set[bytes] = set()
    said: list[tuple[bytes, bool]] = []
    for record in records:
        if isinstance(record, CorruptRange):
            lost, said = set(), []
            continue
        try:
            if record.kind == Kind.SENDERS:
                lost = {
                    row[0] for row in unpack(record.payload) if len(row) > 2 and row[2] is True and _is_sender(row[0])
                }
            elif record.kind == Kind.PRESENCE:
                sender, is_here, *_ = unpack(record.payload)
                if _is_sender(sender):
                    said.append((sender, bool(is_here)))
            elif record.kind == Kind.RECEIPT:
                for sender, is_here in said:
                    (lost.discard if is_here else lost.add)(sender)
                said = []
        except (CodecError, ValueError, TypeError, LookupError):
            continue  # as above
    return lost


def _is_sender(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == SENDER_BYTES and value != OWN_SENDER


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < NUMBER_LIMIT


def _firsts(rows: list[list[int]]) -> list[tuple[int, int]]:
    firsts: dict[int, int] = {}
    for row in rows:
        firsts.setdefault(row[0], row[1])
    return list(firsts.items())


def empty_receipt(now_us: int) -> LogEntry:
    """Return a receipt that covers nothing, to be written after numbers that a log had and lost.

    The index then applies the records before it and declares the loss at once, not at the next record of an agent.
    """
    return LogEntry(Kind.RECEIPT, payload=pack([now_us, []]))
