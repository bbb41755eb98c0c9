"""The messages of an Arrow IPC stream: where each begins and ends, and what its head claims.

    stream     [mark FF FF FF FF, i32 size, flatbuffer Message of that size, body of bodyLength bytes] …; size 0 ends it
    Message    table: 0 version, 1 type of header, 2 header, 3 bodyLength i64
    dictionary table: 0 id i64, 1 batch, 2 isDelta bool
    batch      table: 0 length, 1 nodes [(rows i64, nulls i64) …], 2 buffers [(offset i64, length i64) …], 3 compression

Source: the Arrow columnar format, Message.fbs.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

MARK = b"\xff\xff\xff\xff"
PREFIX_BYTES = 8  # the mark and the size
DICTIONARY, BATCH = 2, 3  # types of header
_u16, _i32, _u32, _i64 = (struct.Struct(f"<{code}").unpack_from for code in "HiIq")


class StreamError(ValueError):
    """The bytes are not an Arrow stream, or claim more than they hold."""


class MessageHead(NamedTuple):
    """What a message claims. header: the offset of its table in the flatbuffer; None if it has none."""

    kind: int
    header: int | None
    body_bytes: int


def message_bytes(prefix: "bytes | memoryview") -> int:
    """Return the size of the flatbuffer after a prefix of PREFIX_BYTES; 0 ends the stream. Raises StreamError."""
    if len(prefix) < PREFIX_BYTES:
        raise StreamError(f"a message is cut short after {len(prefix)} bytes")
    if bytes(prefix[:4]) != MARK:
        raise StreamError("a message does not begin with its mark")
    return int(_i32(prefix, 4)[0])


def message_head(flat: "bytes | memoryview") -> MessageHead:
    """Return the head of a message. flat: its flatbuffer. Raises struct.error and StreamError."""
    table = _u32(flat)[0]
    kind_at, header_at, body_at = (field_at(flat, table, number) for number in (1, 2, 3))
    kind = flat[kind_at] if kind_at is not None and kind_at < len(flat) else 0
    header = header_at + _u32(flat, header_at)[0] if header_at is not None else None
    return MessageHead(kind, header, _i64(flat, body_at)[0] if body_at is not None else 0)


def field_at(flat: "bytes | memoryview", table: int, number: int) -> int | None:
    """Return the offset of a field of a flatbuffer's table; None if it has its default."""
    layout = table - _i32(flat, table)[0]
    if layout < 0:
        raise StreamError("a table lies outside of its message")
    entry = 4 + 2 * number
    offset = _u16(flat, layout + entry)[0] if entry < _u16(flat, layout)[0] else 0
    return table + offset if offset else None


def dictionary_of(flat: "bytes | memoryview") -> tuple[int, bool]:
    """Return (ID, whether it continues the previous one) of a dictionary. Raises struct.error and StreamError."""
    header = message_head(flat).header
    if header is None:
        raise StreamError("a dictionary has no header")
    id_at, delta_at = field_at(flat, header, 0), field_at(flat, header, 2)
    return _i64(flat, id_at)[0] if id_at is not None else 0, delta_at is not None and bool(flat[delta_at])


def count_rows(read: "Callable[[int, int], bytes | memoryview]", n_bytes: int) -> int:
    """Return the number of rows of a stream that this program wrote, from the heads of its messages alone.

    read: returns bytes by offset and number. n_bytes: of the stream.
    """
    at = n_rows = 0
    while at < n_bytes and (size := message_bytes(read(at, PREFIX_BYTES))) > 0:
        flat = read(at + PREFIX_BYTES, size)
        kind, header, body_bytes = message_head(flat)
        if kind == BATCH and header is not None:
            length_at = field_at(flat, header, 0)
            n_rows += _i64(flat, length_at)[0] if length_at is not None else 0
        at += PREFIX_BYTES + size + body_bytes
    return n_rows
