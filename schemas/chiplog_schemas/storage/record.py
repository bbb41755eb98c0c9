"""The record: the checksummed frame that journal, spool and log consist of.

    offset  size  field
         0     4  magic      'CLR1'
         4     4  crc        CRC-32 of payload, continued over bytes 8..24
         8     4  length     of the payload, at most RECORD_BYTES_MAX
        12     1  kind       what the payload is
        13     1  version    of that kind's layout
        14     2  flags      0; a reader ignores bits it does not know
        16     8  number     grows along the log, below 2^63 - 1: the event's seq in a journal, a count in spool and log
        24     …  payload

All integers are little-endian. The checksum covers the payload first, so that a hop that moves a record into its own
log computes the new checksum from the old payload's in constant time (`reframe`).
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from zlib import crc32

from chiplog_schemas.limits import NUMBER_LIMIT, RECORD_BYTES_MAX, RESYNC_BYTES_MAX

MAGIC = 0x31524C43  # b"CLR1"
MAGIC_BYTES = b"CLR1"
HEADER_BYTES = 24
TORN_HEADER = "torn header"
TORN_PAYLOAD = "torn payload"
MISMATCH = "checksum mismatch"
_OUT_OF_ORDER = "numbers out of order"

pack_front = struct.Struct("<II").pack  # magic, crc
pack_back = struct.Struct("<IBBHQ").pack  # length, kind, version, flags, number
unpack_header = struct.Struct("<IIIBBHQ").unpack_from


class Kind(IntEnum):
    """What a record's payload is. Numbers are never reused."""

    EVENT = 1  # one event of one producer (journal)
    BLOCK = 2  # a columnar batch of events (spool, log)
    RECEIPT = 3  # who sent the records that follow, and when they came (log)
    SENDERS = 4  # next number of every sender: first record of each log segment, so that a start reads one segment
    QUARANTINE = 5  # bytes that are not a record, with the reason (log)
    GAP = 6  # a sender's LOST at the hop: numbers that can never arrive (log)
    STORED = 7  # a file's content that is on stable storage next to the log (log)
    PRESENCE = 8  # whether an agent is connected, as the receiver concludes (log)
    MANAGE = 9  # a change that a person or the retention made to recorded runs: see changes.py (log)
    PRUNED = 10  # in place of a record whose content was deleted, so that receipts keep their counts; empty (log)
    TRIMMED = 11  # a block without rows that a store has; its seqs still count as received (log)


@dataclass(slots=True)  # not frozen: a frozen one costs a microsecond more, and a log has millions
class Record:
    """One decoded record. `payload` is a view into the scanned bytes."""

    kind: int
    version: int
    number: int
    payload: memoryview
    payload_crc: int
    end: int  # offset after the record in the scanned bytes


@dataclass(frozen=True, slots=True)
class CorruptRange:
    """Bytes in the middle of a log that are not a record. Only their own content is lost."""

    start: int
    end: int
    reason: str


def encode(kind: int, number: int, payload: bytes | memoryview, version: int = 1) -> bytes:
    """Frame a payload. Asserts the length: callers limit what they write."""
    assert len(payload) <= RECORD_BYTES_MAX, f"payload of {len(payload)} bytes exceeds {RECORD_BYTES_MAX}"
    back = pack_back(len(payload), kind, version, 0, number)
    return b"".join((pack_front(MAGIC, crc32(back, crc32(payload))), back, payload))


def reframe(record: Record, number: int) -> tuple[bytes, memoryview]:
    """Assign another number to a record without touching its payload: (new header, payload)."""
    back = pack_back(len(record.payload), record.kind, record.version, 0, number)
    return pack_front(MAGIC, crc32(back, record.payload_crc)) + back, record.payload


def parse_record(data: memoryview, offset: int) -> Record | str:
    """Return the record at an offset, or the reason why there is none."""
    if len(data) - offset < HEADER_BYTES:
        return TORN_HEADER
    magic, crc, length, kind, version, _flags, number = unpack_header(data, offset)
    if magic != MAGIC:
        return "no record header"
    if length > RECORD_BYTES_MAX:
        return f"length {length} exceeds the limit of {RECORD_BYTES_MAX}"
    if number >= NUMBER_LIMIT:
        return f"number {number} is not below 2^63 - 1"
    start = offset + HEADER_BYTES
    end = start + length
    if end > len(data):
        return TORN_PAYLOAD
    payload = data[start:end]
    payload_crc = crc32(payload)
    if crc32(data[offset + 8 : start], payload_crc) != crc:  # safeguard: record-checksum-checked
        return MISMATCH
    return Record(kind, version, number, payload, payload_crc, end)


def scan_records(
    data: bytes | memoryview, start: int = 0, *, first: int | None = None, sealed: bool = True, cut: bool = False
) -> Iterator[Record | CorruptRange]:
    """Iterate over the records in bytes, skipping damage and records whose number is out of order.

    Zeros up to the end are unused space of a preallocated segment and end the iteration silently. So does a damaged
    tail of a segment that is still being written (`sealed=False`): its rest may not have been written yet. With `cut`,
    more bytes follow after the end, so a record that crosses the end ends the iteration. `first` is the expected number
    of the first record, -1 if it is unknown, None for any. A record with another number counts only if the records
    after it confirm it.
    """
    view = memoryview(data)
    offset, last = start, -1
    found = parse_record(view, offset) if offset < len(view) else TORN_HEADER
    if isinstance(found, Record) and first not in (None, found.number):  # safeguard: misplaced-segment-start-skipped
        found = _OUT_OF_ORDER
    while isinstance(found, Record):
        end = found.end
        if end == len(view):
            yield found
            return
        following = parse_record(view, end)
        if not isinstance(following, Record) or following.number != found.number + 1:
            break
        yield found
        offset, last, found = end, found.number, following
    if offset < len(view):
        yield from _scan_with_damage(data, offset, last, sealed=sealed, cut=cut)


def _scan_with_damage(
    data: bytes | memoryview, offset: int, last: int, *, sealed: bool, cut: bool
) -> Iterator[Record | CorruptRange]:
    """Iterate over the rest of the bytes, from the last record before a jump or before damage.

    The longest increasing run of valid records counts. A block that a disk wrote to the wrong place holds valid records
    too, with numbers from elsewhere, and must not cost the records around it.
    """
    view = memoryview(data)
    searcher: _Resynchronizer | None = None
    sound: list[tuple[int, Record]] = []
    reasons: dict[int, str] = {}
    at = offset
    tail = ""
    while at < len(view):
        found = parse_record(view, at)
        if isinstance(found, Record):
            sound.append((at, found))
            at = found.end
            continue
        if cut and found in (TORN_HEADER, TORN_PAYLOAD):
            break
        searcher = searcher or _Resynchronizer(data)
        resume = searcher.next_record(at + 1, last)  # safeguard: resync-after-damage
        if resume is None:
            tail = "" if cut or not sealed or not any_nonzero(view[at:]) else found
            break
        reasons[at] = found
        at = resume
    for begin, record in _longest_increasing(sound, last):
        if begin > offset:
            yield CorruptRange(offset, begin, reasons.get(offset, _OUT_OF_ORDER))
        yield record
        offset = record.end
    if at > offset:
        yield CorruptRange(offset, at, reasons.get(offset, _OUT_OF_ORDER))
    if tail:
        yield CorruptRange(at, len(view), tail)


def _longest_increasing(sound: list[tuple[int, Record]], last: int) -> list[tuple[int, Record]]:
    """Return the longest run of records above `last` with growing numbers; the first of equals (patience sorting)."""
    sound = [entry for entry in sound if entry[1].number > last]
    tops: list[int] = []  # by length: the highest number that starts a run of this length, negated
    lengths: list[int] = []  # of the longest run that starts at a record, from the last record to the first
    for _, record in reversed(sound):
        length = bisect_left(tops, -record.number)
        tops[length : length + 1] = [-record.number]
        lengths.append(length + 1)
    wanted = len(tops)
    chain: list[tuple[int, Record]] = []
    for entry, length in zip(sound, reversed(lengths), strict=True):
        if length == wanted and entry[1].number > last:  # safeguard: misplaced-block-skipped
            chain.append(entry)
            last, wanted = entry[1].number, wanted - 1
    return chain


class _Resynchronizer:
    """Finds the next valid record after damage. One per scan: it copies the bytes once and bounds the total work."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._raw = data if isinstance(data, bytes) else bytes(data)  # only bytes can be searched
        self._checked = 0  # checksummed bytes that were not a record

    def next_record(self, offset: int, above: int) -> int | None:
        """Return the offset of the next record.

        Its number must exceed `above`: payloads may contain bytes that look like one.
        """
        view = memoryview(self._raw)
        at = self._raw.find(MAGIC_BYTES, offset)
        while at >= 0 and self._checked < RESYNC_BYTES_MAX:
            found = parse_record(view, at)
            if isinstance(found, Record) and found.number > above:
                return at
            # safeguard: resync-bounded
            if found == MISMATCH or isinstance(found, Record):  # records inside of payloads cost as much
                self._checked += HEADER_BYTES + unpack_header(view, at)[2]
            at = self._raw.find(MAGIC_BYTES, at + 1)
        return None


def any_nonzero(view: memoryview) -> bool:
    """Return True if any byte is not zero, at the speed of memory."""
    return bytes(view).count(0) != len(view)
