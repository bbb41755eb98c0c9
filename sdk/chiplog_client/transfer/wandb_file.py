"""Records of a `.wandb` file, W&B's log of a run on disk: LevelDB's log format with a header of W&B's.

    file     = header, blocks of 32 KiB, the last one shorter; the header is in the first block
    header   = ":W&B" | magic 0xBEE1 (u16) | version 0 (u8)
    block    = fragments, then fewer than 7 zero bytes where no other begins
    fragment = CRC-32 of type and payload (u32) | bytes of the payload (u16) | type (u8) | payload

Integers are little-endian. Types: a whole record, or its first, a middle, or its last fragment. A record is a protobuf
message `Record` of wandb/proto/wandb_internal.proto, which this module does not decode.

Source: core/pkg/leveldb/record.go and core/internal/transactionlog of W&B 0.31; LevelDB, doc/log_format.md. The
checksum is the plain CRC-32 of zlib, not LevelDB's masked CRC-32C.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

BLOCK_BYTES = 32 << 10
HEADER = struct.Struct("<4sHB")
FRAGMENT = struct.Struct("<IHB")
IDENTITY, MAGIC, VERSION = b":W&B", 0xBEE1, 0
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
_DAMAGED, _CUT = -1, -2  # of no file


class WandbFileError(ValueError):
    """A file that is not a `.wandb` file, or one of another version."""


def read_records(file: BinaryIO, report: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the bytes of each record, in order; skip what is damaged.

    As W&B does, it continues after damage at the next record that begins in a later block: a length may be wrong, too.
    Memory: one block and one record.

    Args:
        file: Opened for reading bytes, at its start. It may still be written.
        report: Called with one line for each damaged part, and for an end within a record, as a killed run leaves it.

    Raises:
        WandbFileError: The file does not begin as a `.wandb` file.

    """
    parts: list[bytes] = []  # of a record whose last fragment is not read yet
    record_begin = 0
    is_skipping = False  # after damage, until a record begins
    for offset, kind, payload in _fragments(file, report):
        begins = kind in (WHOLE, FIRST)
        if kind == _DAMAGED:
            parts, is_skipping = [], True
            continue
        if kind == _CUT:
            record_begin = record_begin if parts else offset
        elif begins and parts:
            report(f"offset {record_begin}: the record has no end; another begins at offset {offset}")
        elif not begins and not parts:
            if not is_skipping:
                report(f"offset {offset}: a fragment continues a record that has no beginning; it is skipped")
            is_skipping = True
            continue
        if begins:
            parts, record_begin, is_skipping = [], offset, False
        parts.append(payload)
        if kind in (WHOLE, LAST):
            yield b"".join(parts)
            parts = []
    if parts:
        report(f"offset {record_begin}: the file ends within a record: the run was killed, or the copy is incomplete")


def _fragments(file: BinaryIO, report: Callable[[str], None]) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, type and payload of each fragment; _DAMAGED before a skipped rest of a block, _CUT at the end."""
    block = _read_block(file)
    _check_header(block)
    begin, at = 0, HEADER.size  # offsets: of the block in the file, in the block
    while block:
        end, is_last = len(block), len(block) < BLOCK_BYTES
        while at + FRAGMENT.size <= end:
            checksum, size, kind = FRAGMENT.unpack_from(block, at)
            payload_end = at + FRAGMENT.size + size
            if is_last and end < payload_end <= BLOCK_BYTES:
                break
            payload = block[at + FRAGMENT.size : payload_end]
            if reason := _damage(checksum, size, kind, payload):
                report(f"offset {begin + at}: {reason}; the rest of its block of {BLOCK_BYTES} bytes is skipped")
                yield begin + at, _DAMAGED, b""
                at = end
                break
            yield begin + at, kind, payload
            at = payload_end
        if is_last and at < end:
            yield begin + at, _CUT, b""
        begin, at = begin + end, 0
        block = b"" if is_last else _read_block(file)


def _read_block(file: BinaryIO) -> bytes:
    """Return the next block; a shorter one only at the end of the file, though a pipe or raw file returns less."""
    block = b""
    while len(block) < BLOCK_BYTES and (read := file.read(BLOCK_BYTES - len(block))):
        block += read
    return block


def _check_header(block: bytes) -> None:
    found = block[: HEADER.size]
    if not found:
        raise WandbFileError("the file is empty: its run was killed at once, or the copy is incomplete")
    if len(found) < HEADER.size or HEADER.unpack(found)[:2] != (IDENTITY, MAGIC):
        raise WandbFileError(f"it begins with {found!r}, which no .wandb file does; name the run-….wandb of a run")
    version = HEADER.unpack(found)[2]
    if version != VERSION:
        raise WandbFileError(f"it has version {version} of W&B's format, and {VERSION} is known; update chiplog")


def _damage(checksum: int, size: int, kind: int, payload: bytes) -> str:
    """Return why a fragment is damaged; '' if it is not."""
    if checksum == size == kind == 0:
        return "zeros where a record should begin"
    if len(payload) < size:
        return f"a fragment of {size} bytes exceeds its block"
    if checksum != zlib.crc32(payload, zlib.crc32(bytes([kind]))):
        return f"the checksum of a fragment of {size} bytes is wrong"
    return "" if kind in (WHOLE, FIRST, MIDDLE, LAST) else f"a fragment has the unknown type {kind}"
