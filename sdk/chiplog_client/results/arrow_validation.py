"""Validate an Arrow IPC stream before it is read: the reader allocates what the bytes claim, or aborts the process.

`arrow_messages` has the layout. A buffer of a compressed batch begins with i64 bytes when unpacked, or -1; then come
LZ4 frames. Only sizes are checked; the reader detects most other errors itself.
"""

import struct
from collections.abc import Iterator

from chiplog_schemas.query.arrow_messages import (
    BATCH,
    DICTIONARY,
    PREFIX_BYTES,
    StreamError,
    field_at,
    message_bytes,
    message_head,
)

_LZ4_RATIO_MAX = 255  # of the format: one byte encodes at most so many
_FRAME_BYTES = 64  # overhead of an LZ4 frame: a claim this small costs nothing
_BUFFER_BYTES_MAX = 1 << 31  # of one column of one batch, unpacked: the range of 32-bit offsets
_u32, _i64 = (struct.Struct(f"<{code}").unpack_from for code in "Iq")


def validate_ipc_stream(stream: "bytes | bytearray | memoryview") -> None:
    """Check every size that a stream claims against the available bytes. Raises StreamError."""
    view = memoryview(stream).cast("B")
    try:
        at = 0
        while at < len(view):
            size = message_bytes(view[at : at + PREFIX_BYTES])
            if size == 0:
                return
            start = at + PREFIX_BYTES
            if not 0 < size <= len(view) - start:
                raise StreamError(f"a message of {size} bytes does not fit")
            kind, header, body_size = message_head(view[start : start + size])
            at = start + size + body_size
            if not 0 <= body_size <= len(view) - start - size:  # safeguard: answer-size-checked
                raise StreamError(f"a body of {body_size} bytes does not fit")
            if header is not None:
                _check_batch(view[start : start + size], kind, header, view[start + size : at])
    except struct.error as error:
        raise StreamError(f"a message is cut short: {error}") from error


def _check_batch(flat: memoryview, kind: int, header: int, body: memoryview) -> None:
    """Check the buffers of a batch against its body, and their claimed unpacked sizes against the possible ones."""
    if kind == DICTIONARY:
        data_at = field_at(flat, header, 1)
        if data_at is None:
            return
        header = data_at + _u32(flat, data_at)[0]
    elif kind != BATCH:
        return
    for n_rows, n_nulls in _pairs(flat, field_at(flat, header, 1)):
        if not 0 <= n_nulls <= n_rows:
            raise StreamError(f"a column of {n_rows} rows has {n_nulls} nulls")
    compressed = field_at(flat, header, 3) is not None
    room = len(body)
    for offset, length in _pairs(flat, field_at(flat, header, 2)):
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
