"""Fill a segment log with known records, and read it back."""

from pathlib import Path

from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.record import CorruptRange, Kind, Record
from chiplog_schemas.storage.segment_log import SegmentLog

OWNER = bytes(range(16))


def payload_of(number: int) -> bytes:
    return f"record {number}".encode() * (1 + number % 7)


def fill(log: SegmentLog, count: int, *, each: int = 3) -> None:
    for index in range(count):
        number = log.next_number
        assert log.append(Kind.BLOCK, payload_of(number)) == number
        if index % each == each - 1:
            log.commit()
    log.commit()


def read_all(directory: Path, limit: int, max_bytes: int = 1 << 20, start: int = 0) -> list[Record | CorruptRange]:
    reader = LogReader(directory, start)
    found: list[Record | CorruptRange] = []
    while items := reader.read(limit, max_bytes):
        found += items
    reader.close()
    return found


def numbers_of(items: list[Record | CorruptRange]) -> list[int]:
    for item in items:
        if isinstance(item, Record):
            assert bytes(item.payload) == payload_of(item.number)
    return [item.number for item in items if isinstance(item, Record)]
