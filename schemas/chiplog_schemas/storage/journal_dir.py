"""A journal as other processes see it: its directory and head page, and how to read one whose process has ended.

    <producer as hex>/
      lock       fcntl lock of the process; while it is free, the process has ended
      head       one page, allocated at init and mapped:

        offset  size  field
             0     8  magic          'CHIPJRN' and the format's version, 1
             8     4  crc            CRC-32 of the identity
            12     4  identity_size
            16    16  producer
            32     8  acked          everything before this seq is on stable storage at the next hop
            40     8  produced       seqs assigned, written when events are dropped and when the run finishes
            48     4  flags          bit 0: the run finished; bit 1: its process ended, its exit status shows how
            52     4  promised       events still to get a seq: values on their way from a device
            64     …  identity       msgpack map, see events.IDENTITY_FIELDS

      status     created with the console's helper, which writes there how the process ended: the status as of
                 waitpid(2) and its source, as text. Empty until then; it may be absent
      *.seg      segments; a record's number is the event's seq

A directory has this name only when all of its files exist. A name that begins with a dot marks a directory that is
being created or removed.
"""

import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.codec import CodecError, unpack
from chiplog_schemas.interrupts import handlers_held
from chiplog_schemas.model.events import IDENTITY_FIELDS, select_typed
from chiplog_schemas.storage.record import CorruptRange, Record, any_nonzero
from chiplog_schemas.storage.segment_format import SEGMENT_HEADER_BYTES, decode_header, list_segments, read_segment

HEAD_MAGIC = b"CHIPJRN\x01"
HEAD_PAGE_BYTES = 4096
IDENTITY_OFFSET = 64
HEAD_FIXED = struct.Struct("<8sII16sQQI")
# The counters, each written separately.
ACKED = PRODUCED = struct.Struct("<Q")
FLAGS = PROMISED = struct.Struct("<I")
ACKED_OFFSET, PRODUCED_OFFSET, FLAGS_OFFSET, PROMISED_OFFSET = 32, 40, 48, 52
FINISHED = 1
LEFT = 2

LOCK_NAME = "lock"
HEAD_NAME = "head"


@dataclass(slots=True)
class JournalHead:
    """The head page of a journal. `identity` is empty when its checksum is wrong."""

    producer: bytes
    acked: int
    produced: int
    finished: bool
    identity: dict[str, Any]
    promised: int = 0
    left: bool = False


def head_bytes(identity: bytes) -> int:
    """Return the size of a head file for a packed identity, in whole pages."""
    return -(-(IDENTITY_OFFSET + len(identity)) // HEAD_PAGE_BYTES) * HEAD_PAGE_BYTES


def encode_head(producer: bytes, identity: bytes, acked: int = 0, produced: int = 0, flags: int = 0) -> bytes:
    """Return the bytes of a head page up to the end of the identity."""
    fixed = HEAD_FIXED.pack(HEAD_MAGIC, crc32(identity), len(identity), producer, acked, produced, flags)
    return fixed.ljust(IDENTITY_OFFSET, b"\0") + identity


def decode_head(data: bytes) -> JournalHead | None:
    """Decode a head page; None when it is invalid."""
    if len(data) < IDENTITY_OFFSET or data[:8] != HEAD_MAGIC:
        return None
    _, crc, size, producer, acked, produced, flags = HEAD_FIXED.unpack_from(data)
    packed = data[IDENTITY_OFFSET : IDENTITY_OFFSET + size]
    identity: dict[str, Any] = {}
    if len(packed) == size and crc32(packed) == crc:
        try:
            identity = select_typed(unpack(packed), IDENTITY_FIELDS)
        except CodecError:
            identity = {}
    (promised,) = PROMISED.unpack_from(data, PROMISED_OFFSET)
    return JournalHead(producer, acked, produced, bool(flags & FINISHED), identity, promised, bool(flags & LEFT))


class JournalReader:
    """A journal whose lock the reader holds. Reads the records that its process left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.head: JournalHead | None = None
        try:
            self.head = decode_head((directory / HEAD_NAME).read_bytes())
        except FileNotFoundError:
            self.head = None

    def records(self, first: int = 0) -> Iterator[Record | CorruptRange]:
        """Yield the records with a seq of at least `first`, and damaged ranges in their place. Raises OSError."""
        begun: list[tuple[int, Path]] = []
        for _, path in list_segments(self.directory):
            with open(path, "rb") as segment:
                start = segment.read(SEGMENT_HEADER_BYTES)
                if not any(start) and not any_nonzero(memoryview(segment.read())):  # safeguard: zeroed-header-is-read
                    continue  # allocated ahead and never used
            header = decode_header(start)
            begun.append((header.base if header else _first_number(path), path))
        for _, path in sorted(begun):
            for item in read_segment(path):
                if isinstance(item, CorruptRange) or item.number >= first:
                    yield item

    def remove(self) -> bool:
        """Delete the journal, whose records are on stable storage elsewhere. Return True if its name is free."""
        return remove_journal(self.directory, sync=True)


def _first_number(path: Path) -> int:
    """Return the number of the first valid record of a segment whose header is damaged."""
    return next((item.number for item in read_segment(path) if isinstance(item, Record)), 0)


def remove_journal(directory: Path, *, sync: bool = False) -> bool:
    """Delete a journal's directory, after renaming it to a hidden name. Return True if the visible name is free.

    `sync` makes the rename survive a power failure: half of a journal, under its name, would report a rank that
    vanished.
    """
    hidden = directory.with_name(f".done-{directory.name}")
    with handlers_held():  # safeguard: interrupt-passes-removal
        try:
            os.rename(directory, hidden)
            if sync:
                sync_directory(directory.parent)
        except OSError:  # already gone, in use by another process, or the disk refuses: the hidden name remains
            return not directory.exists()
        shutil.rmtree(hidden, ignore_errors=True)  # which ignores what a signal handler raises, too
        return True


def list_journals(journals: Path) -> list[tuple[bytes, Path]]:
    """Return (producer, directory) of every complete journal under a journals directory."""
    try:
        names = sorted(os.listdir(journals))
    except FileNotFoundError:
        return []
    return [(bytes.fromhex(name), journals / name) for name in names if len(name) == 32 and _is_hex(name)]


def is_adoptable(directory: Path) -> bool:
    """Return True if an agent of this user can adopt this journal once its process has ended. It only reads.

    Without the lock file the head must exist: a directory without both is not a journal.
    """
    lock = directory / LOCK_NAME
    has_lock = os.path.lexists(lock)
    try:
        with open(directory / HEAD_NAME, "rb") as head:
            head.read(1)
    except FileNotFoundError:
        if not has_lock:
            return False
    except OSError:
        return False
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return False
    return not has_lock or (lock.is_file() and os.access(lock, os.R_OK | os.W_OK))


def _is_hex(name: str) -> bool:
    return not name.strip("0123456789abcdef")
