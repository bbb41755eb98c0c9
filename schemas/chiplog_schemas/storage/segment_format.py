"""Segments: the append-only files of records that journal, spool and the collector's log consist of.

A segment is a file `{number:020d}.seg`. In spool and log the number is that of its first record. In a journal, whose
segments are allocated before that number is known, it only increases, and the order is that of `base`. A segment
begins with

    offset  size  field
         0     8  magic      'CHIPSEG' and the format's version, 1
         8     4  crc        CRC-32 of bytes 12..48
        12     4  flags      0
        16    16  owner      producer, spool or log that assigned the numbers
        32     8  base       number of the first record
        40     8  created    µs since the epoch

followed by records (record.py). Numbers increase; a jump is a gap that the owner declares elsewhere. Zeros after the
last record are preallocated space. Only the newest segment is written to.
"""

import os
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from chiplog_schemas.limits import NUMBER_LIMIT
from chiplog_schemas.storage.record import CorruptRange, Record, scan_records

SEGMENT_MAGIC = b"CHIPSEG\x01"
SEGMENT_HEADER_BYTES = 48
_SEGMENT_HEADER = struct.Struct("<II16sQq")


@dataclass(slots=True)
class SegmentHeader:
    """The first 48 bytes of a segment."""

    owner: bytes
    base: int
    created_us: int


def encode_header(header: SegmentHeader) -> bytes:
    """Return the 48 bytes that begin a segment."""
    rest = _SEGMENT_HEADER.pack(0, 0, header.owner, header.base, header.created_us)[4:]
    return SEGMENT_MAGIC + struct.pack("<I", crc32(rest)) + rest


def decode_header(data: bytes | memoryview) -> SegmentHeader | None:
    """Read the first 48 bytes of a segment; None when they are damaged."""
    if len(data) < SEGMENT_HEADER_BYTES or bytes(data[:8]) != SEGMENT_MAGIC:
        return None
    crc, _flags, owner, base, created_us = _SEGMENT_HEADER.unpack_from(data, 8)
    if crc32(bytes(data[12:SEGMENT_HEADER_BYTES])) != crc:
        return None
    return SegmentHeader(owner, base, created_us)


def read_header(path: Path) -> SegmentHeader | None:
    """Return the header of a segment file; None when it is damaged. Raises OSError."""
    with open(path, "rb") as segment:
        return decode_header(segment.read(SEGMENT_HEADER_BYTES))


def segment_name(base: int) -> str:
    """Return the file name of the segment that begins with this number."""
    return f"{base:020d}.seg"


def list_segments(directory: Path) -> list[tuple[int, Path]]:
    """Return (base, path) of the segments of a log, in order; none for an absent directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = [(int(name[:-4]), directory / name) for name in names if name.endswith(".seg") and name[:-4].isdecimal()]
    return sorted(entry for entry in found if entry[0] < NUMBER_LIMIT)  # no writer uses a higher number


def log_owner(directory: Path) -> bytes | None:
    """Return the owner of the segments in a directory, from the newest valid header; None without one."""
    return next((owner for _, owner in _owners(directory)), None)


def former_owner(directory: Path) -> tuple[bytes, int] | None:
    """Return the owner of a log before it was restored, and the last number of its segments; None without one."""
    owner = None
    for path, found in _owners(directory):
        owner = owner or found
        if found != owner:
            numbers = [item.number for item in read_segment(path) if isinstance(item, Record)]
            return found, max(numbers, default=-1)
    return None


def former_owners(directory: Path) -> list[bytes]:
    """Return the owners of a log before it was restored or retired, the newest first."""
    return list(dict.fromkeys(owner for _, owner in _owners(directory)))[1:]


def larger_owner(owner: bytes) -> bytes:
    """Return a random ID above another one: of an event in two logs, views take the one in the smaller log."""
    least = int.from_bytes(owner, "big") + 1
    end = 1 << 8 * len(owner)
    return (least + secrets.randbelow(max(1, end - least))).to_bytes(len(owner), "big")


def _owners(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the segments with a valid header and their owners, the newest first."""
    for _, path in reversed(list_segments(directory)):
        if (header := read_header(path)) is not None:
            yield path, header.owner


def read_segment(path: Path, *, sealed: bool = True) -> Iterator[Record | CorruptRange]:
    """Read all records of a segment file.

    A damaged segment header is itself a CorruptRange; its records are still read.
    """
    data = path.read_bytes()
    header = decode_header(data)
    if header is None:
        if len(data) <= SEGMENT_HEADER_BYTES:
            return
        yield CorruptRange(0, SEGMENT_HEADER_BYTES, "segment header damaged")
    yield from scan_records(data, SEGMENT_HEADER_BYTES, first=-1 if header is None else header.base, sealed=sealed)
