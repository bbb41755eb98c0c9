"""Framing between agent and sampler."""

import random
import struct

import pytest

from chiplog_agent.stats.frames import FRAME_BYTES_MAX, FrameError, FrameReader, encode_frame


def test_values_come_back_however_the_stream_is_cut() -> None:
    values = [["sample", 1, "", ["a"], [1.5]], ["line", "x" * 70_000], ["stale", "GPU-1"], []]
    stream = b"".join(map(encode_frame, values))
    for size in (1, 3, 4, 5, 4096, len(stream)):
        reader = FrameReader()
        read = [value for at in range(0, len(stream), size) for value in reader.feed(stream[at : at + size])]
        assert read == values
        assert reader.bad_frames == 0


def test_a_frame_that_is_no_msgpack_is_counted_and_the_next_is_read() -> None:
    reader = FrameReader()
    assert reader.feed(struct.pack("<I", 2) + b"\xc1\xc1" + encode_frame(["line", "on"])) == [["line", "on"]]
    assert reader.bad_frames == 1


def test_a_length_beyond_the_limit_is_refused_before_anything_is_kept() -> None:
    with pytest.raises(FrameError, match=str(FRAME_BYTES_MAX)):
        FrameReader().feed(struct.pack("<I", FRAME_BYTES_MAX + 1))


def test_a_value_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(FrameError, match="exceeds the limit"):
        encode_frame(["line", "x" * FRAME_BYTES_MAX])


def test_random_bytes_raise_nothing_but_a_frame_error() -> None:
    # Invariant: whatever arrives, feed returns values or raises FrameError.
    seed = random.randrange(2**32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(500):
        reader = FrameReader()
        data = b"".join(
            struct.pack("<I", generator.choice((length, generator.randrange(40)))) + generator.randbytes(length)
            for length in (generator.randrange(40) for _ in range(10))
        )
        try:
            reader.feed(data)
        except FrameError:
            continue
