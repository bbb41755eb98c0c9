"""Sizes that an Arrow stream claims are checked before it is read."""

import io
import struct

import duckdb
import pytest
from arro3.core import Table
from arro3.io import read_ipc_stream, write_ipc_stream

from chiplog_client.results.arrow_validation import StreamError, validate_ipc_stream

QUERY = "SELECT i, i / 3 AS x, 'text ' || i AS t, [i, NULL] AS l, NULL AS n FROM range(50) r(i)"


def stream_of(compression: str | None = None, query: str = QUERY) -> bytes:
    sink = io.BytesIO()
    with duckdb.connect() as database:
        write_ipc_stream(database.sql(query), sink, compression=compression)
    return sink.getvalue()


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("query", [QUERY, "SELECT 1 AS a WHERE false", "SELECT 'a'::ENUM ('a', 'b') AS e"])
def test_a_stream_as_written_passes_and_is_read(compression: str | None, query: str) -> None:
    stream = stream_of(compression, query)
    validate_ipc_stream(stream)
    validate_ipc_stream(memoryview(bytearray(stream)))
    assert Table.from_arrow(read_ipc_stream(stream).read_all()).num_columns > 0


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_stream_that_is_cut_short_within_a_message_is_refused(compression: str | None) -> None:
    stream = stream_of(compression)
    (schema_size,) = struct.unpack_from("<i", stream, 4)
    between = {0, 8 + schema_size, len(stream) - 8}
    for size in range(len(stream) - 8):
        if size not in between:
            with pytest.raises(StreamError):
                validate_ipc_stream(stream[:size])


@pytest.mark.parametrize("claimed", [-1, 1 << 30, -(1 << 31)])
def test_a_message_that_claims_more_than_there_is_is_refused(claimed: int) -> None:
    stream = bytearray(stream_of())
    struct.pack_into("<i", stream, 4, claimed)
    with pytest.raises(StreamError, match=f"a message of {claimed} bytes does not fit"):
        validate_ipc_stream(stream)


def test_a_buffer_that_claims_to_unpack_to_gigabytes_is_refused() -> None:
    stream = bytearray(stream_of("lz4", "SELECT range AS n FROM range(1000)"))
    n_bytes = struct.pack("<q", 8 * 1_000)
    at = stream.index(n_bytes + b"\x04\x22\x4d\x18")  # before a frame of LZ4
    struct.pack_into("<q", stream, at, 1 << 40)
    with pytest.raises(StreamError, match=rf"claims {1 << 40} when unpacked"):
        validate_ipc_stream(stream)


def test_a_buffer_outside_of_its_body_is_refused() -> None:
    stream = bytearray(stream_of(None, "SELECT range AS n FROM range(1000)"))
    at = stream.rindex(struct.pack("<q", 8 * 1_000), 0, stream.index(struct.pack("<qqq", 0, 1, 2)))
    struct.pack_into("<q", stream, at, 1 << 40)
    with pytest.raises(StreamError, match="a buffer lies outside of its body"):
        validate_ipc_stream(stream)


@pytest.mark.parametrize("stream", [b"no stream at all", b"\xff\xff\xff\xff\x10\0\0\0garbage", b"\xff" * 64])
def test_bytes_that_are_no_stream_are_refused(stream: bytes) -> None:
    with pytest.raises(StreamError):
        validate_ipc_stream(stream)
