"""Validate an Arrow IPC stream before it is read: the reader allocates what the bytes claim, or aborts the process.

    stream     [mark FF FF FF FF, i32 size, flatbuffer Message of that size, body of bodyLength bytes] …; size 0 ends it
    Message    table: 0 version, 1 type of header, 2 header, 3 bodyLength i64
    batch      table: 0 length, 1 nodes [(rows i64, nulls i64) …], 2 buffers [(offset i64, length i64) …], 3 compression
    buffer     in a compressed batch: i64 bytes when unpacked, or -1; then LZ4 frames

Source: the Arrow columnar format, Message.fbs. Only sizes are checked; the reader detects most other errors itself.
"""

import struct
from collections.abc import Iterator

MARK = b"\xff\xff\xff\xff"
_DICTIONARY, _BATCH = 2, 3  # types of header
_LZ4_RATIO_MAX = 255  # of the format: one byte encodes at most so many
_FRAME_BYTES = 64  # overhead of an LZ4 frame: a claim this small costs nothing
_BUFFER_BYTES_MAX = 1 << 31  # of one column of one batch, unpacked: the range of 32-bit offsets
_u16, _i32, _u32, _i64 = (struct.Struct(f"<{code}").unpack_from for code in "HiIq")


class StreamError(ValueError):
    """The bytes are not an Arrow stream, or claim more than they hold."""


def validate_ipc_stream(stream: "bytes | bytearray | memoryview") -> None:
    """Check every size that a stream claims against the available bytes. Raises StreamError."""
    view = memoryview(stream).cast("B")
    try:
        at = 0
        while at < len(view):
            if bytes(view[at : at + 4]) != MARK:
                raise StreamError("a message does not begin with its mark")
            size = _i32(view, at + 4)[0]
            if size == 0:
                return
            start = at + 8
            if not 0 < size <= len(view) - start:
                raise StreamError(f"a message of {size} bytes does not fit")
            kind, header, body_size = _message(view[start : start + size])
            at = start + size + body_size
            if not 0 <= body_size <= len(view) - start - size:  # safeguard: answer-size-checked
                raise StreamError(f"a body of {body_size} bytes does not fit")
            if header is not None:
                _check_batch(view[start : start + size], kind, header, view[start + size : at])
    except struct.error as error:
        raise StreamError(f"a message is cut short: {error}") from error


def _message(flat: memoryview) -> tuple[int, int | None, int]:
    """Return (type of header, offset of the header, length of the body)."""
    table = _u32(flat)[0]
    kind_at, header_at, body_at = (_field(flat, table, number) for number in (1, 2, 3))
    kind = flat[kind_at] if kind_at is not None and kind_at < len(flat) else 0
    header = header_at + _u32(flat, header_at)[0] if header_at is not None else None
    return kind, header, _i64(flat, body_at)[0] if body_at is not None else 0


def _field(flat: memoryview, table: int, number: int) -> int | None:
    """Return the offset of a field of a flatbuffer's table; None if it has its default."""
    layout = table - _i32(flat, table)[0]
    if layout < 0:
        raise StreamError("a table lies outside of its message")
    entry = 4 + 2 * number
    offset = _u16(flat, layout + entry)[0] if entry < _u16(flat, layout)[0] else 0
    return table + offset if offset else None


def _check_batch(flat: memoryview, kind: int, header: int, body: memoryview) -> None:
    """Check the buffers of a batch against its body, and their claimed unpacked sizes against the possible ones."""
    if kind == _DICTIONARY:
        data_at = _field(flat, header, 1)
        if data_at is None:
            return
        header = data_at + _u32(flat, data_at)[0]
    elif kind != _BATCH:
        return
    for n_rows, n_nulls in _pairs(flat, _field(flat, header, 1)):
        if not 0 <= n_nulls <= n_rows:
            raise StreamError(f"a column of {n_rows} rows has {n_nulls} nulls")
    compressed = _field(flat, header, 3) is not None
    room = len(body)
    for offset, length in _pairs(flat, _field(flat, header, 2)):
        if not 0 <= offset <= offset + length <= len(body) or offset % 8:
            raise StreamError("a buffer lies outside of its body, or at no multiple of 8")
        room -= length
        if room < 0:  # otherwise a small body could be unpacked once for each column  # safeguard: buffers-apart
            raise StreamError("buffers lie over each other")
        if compressed and length >= 8:
            claimed = _i64(body, offset)[0]
            if claimed > min(_LZ4_RATIO_MAX * length + _FRAME_BYTES, _BUFFER_BYTES_MAX):
                raise StreamError(f"a buffer of {length} bytes claims {claimed} when unpacked")


def _pairs(flat: memoryview, at: int | None) -> Iterator[tuple[int, int]]:
    """Yield the entries of a vector of two i64 each."""
    if at is not None:
        vector = at + _u32(flat, at)[0]
        for entry in range(_u32(flat, vector)[0]):
            yield _i64(flat, vector + 4 + 16 * entry)[0], _i64(flat, vector + 12 + 16 * entry)[0]
