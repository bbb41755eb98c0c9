"""The messages of an Arrow IPC stream, as the writer that chiplog uses makes them."""

import io
import struct

import duckdb
import pytest
from arro3.io import write_ipc_stream

from chiplog_schemas.query.arrow_messages import (
    BATCH,
    DICTIONARY,
    MARK,
    PREFIX_BYTES,
    StreamError,
    count_rows,
    dictionary_of,
    message_bytes,
    message_head,
)


def stream_of(query: str, compression: str | None = "lz4") -> bytes:
    sink = io.BytesIO()
    with duckdb.connect() as database:
        write_ipc_stream(database.sql(query), sink, compression=compression)
    return sink.getvalue()


def messages_of(stream: bytes) -> list[tuple[int, bytes]]:
    """Return (type of header, flatbuffer) of each message."""
    found, at = [], 0
    while size := message_bytes(stream[at : at + PREFIX_BYTES]):
        flat = stream[at + PREFIX_BYTES : at + PREFIX_BYTES + size]
        kind, _, body_bytes = message_head(flat)
        found.append((kind, flat))
        at += PREFIX_BYTES + size + body_bytes
    assert at == len(stream) - PREFIX_BYTES, "the end is the last message"
    return found


@pytest.mark.parametrize("n_rows", [0, 1, 300_000])
def test_rows_are_counted_from_the_heads_of_the_batches(n_rows: int) -> None:
    stream = stream_of(f"SELECT range AS a, 'x' || range AS t FROM range({n_rows})")
    n_read = 0

    def read(offset: int, n_bytes: int) -> bytes:
        nonlocal n_read
        n_read += n_bytes
        return stream[offset : offset + n_bytes]

    assert count_rows(read, len(stream)) == n_rows
    assert n_read < 4_000, "no body is read"


def test_a_dictionary_is_a_message_with_an_id_before_its_batch() -> None:
    stream = stream_of("SELECT 'a'::ENUM ('a', 'b') AS e, 'c'::ENUM ('c') AS f")
    messages = messages_of(stream)
    assert [kind for kind, _ in messages[1:]] == [DICTIONARY, DICTIONARY, BATCH]
    ids = [dictionary_of(flat) for kind, flat in messages if kind == DICTIONARY]
    assert len(set(ids)) == 2 and {is_delta for _, is_delta in ids} == {False}


@pytest.mark.parametrize("prefix", [b"", MARK, b"FORD" + bytes(4)])
def test_what_is_no_prefix_is_an_error(prefix: bytes) -> None:
    with pytest.raises(StreamError):
        message_bytes(prefix)


@pytest.mark.parametrize("flat", [bytes(3), struct.pack("<Ii", 4, 100) + bytes(8), b"\xff" * 32])
def test_a_head_that_lies_outside_of_its_message_is_an_error(flat: bytes) -> None:
    with pytest.raises((StreamError, struct.error)):
        message_head(flat)
