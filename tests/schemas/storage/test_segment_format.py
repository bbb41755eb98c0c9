"""The format of segments: damage costs only the records it covers, and other files are not read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog_schemas.storage.record import CorruptRange, Kind, encode
from chiplog_schemas.storage.segment_format import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_header,
    encode_header,
    list_segments,
    read_segment,
    segment_name,
)
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.segments import OWNER, fill, numbers_of, payload_of, read_all


@given(st.binary(max_size=60) | st.integers(0, 8 * SEGMENT_HEADER_BYTES - 1))
def test_a_damaged_segment_header_is_none(found: bytes | int) -> None:
    sound = encode_header(SegmentHeader(OWNER, 7, 8))
    if isinstance(found, bytes):
        assert decode_header(found) is None
        return
    damaged = bytearray(sound)
    damaged[found // 8] ^= 1 << found % 8
    assert decode_header(sound) == SegmentHeader(OWNER, 7, 8)
    assert decode_header(bytes(damaged)) is None


def test_a_segment_whose_header_is_damaged_still_gives_its_records(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 4)
    log.close()
    path = list_segments(tmp_path)[0][1]
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    first, *rest = read_segment(path)
    assert first == CorruptRange(0, SEGMENT_HEADER_BYTES, "segment header damaged")
    assert numbers_of(rest) == [0, 1, 2, 3]
    assert numbers_of(read_all(tmp_path, 4)) == [0, 1, 2, 3]
    assert SegmentLog(tmp_path, OWNER).next_number == 4


@pytest.mark.parametrize("header", [b"", bytes(range(48))], ids=["sound", "damaged"])
@pytest.mark.parametrize("limit", [60, 70])
def test_records_from_elsewhere_at_a_segments_front_cost_only_what_they_cover(
    tmp_path: Path, header: bytes, limit: int
) -> None:
    header = header or encode_header(SegmentHeader(OWNER, 48, 0))
    records = [encode(Kind.BLOCK, number, payload_of(number)) for number in (60, 61, *range(51, 60))]
    path = tmp_path / segment_name(48)
    path.write_bytes(header + b"".join(records))
    assert numbers_of(list(read_segment(path))) == list(range(51, 60))
    assert numbers_of(read_all(tmp_path, limit, start=48)) == list(range(51, 60))


def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    for name in ("x.seg", "²².seg", "1.tmp", "notes"):
        (tmp_path / name).write_bytes(b"?")
    assert list_segments(tmp_path) == []
    assert SegmentLog(tmp_path, OWNER).next_number == 0
