"""The reader of a segment log sees all of it once, in order, and nothing too early."""

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.record import HEADER_BYTES, CorruptRange, Kind, Record, encode
from chiplog_schemas.storage.segment_format import SEGMENT_HEADER_BYTES, list_segments
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.segments import OWNER, fill, numbers_of, payload_of, read_all
from tests.support.waiting import WAIT_S


def test_a_damaged_middle_costs_its_records_and_is_reported_in_place(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER, segment_bytes=400)
    fill(log, 30, each=1)
    base, path = log.segments()[1]
    data = bytearray(path.read_bytes())
    data[SEGMENT_HEADER_BYTES + HEADER_BYTES] ^= 4
    path.write_bytes(data)
    items = read_all(tmp_path, 30)
    assert numbers_of(items) == [number for number in range(30) if number != base]
    damage = [item for item in items if isinstance(item, CorruptRange)]
    end = SEGMENT_HEADER_BYTES + HEADER_BYTES + len(payload_of(base))
    assert damage == [CorruptRange(SEGMENT_HEADER_BYTES, end, "checksum mismatch")]
    log.close()


def test_the_damaged_tail_of_a_sealed_segment_is_reported_once_a_newer_one_follows(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER, segment_bytes=1)
    fill(log, 2, each=1)
    path = log.segments()[1][1]
    path.write_bytes(path.read_bytes()[:-1])
    reader = LogReader(tmp_path)
    assert numbers_of(reader.read(2, 1 << 20)) == [0]
    assert reader.read(2, 1 << 20) == []
    fill(log, 1)
    assert [type(item) for item in reader.read(3, 1 << 20)] == [CorruptRange]
    assert numbers_of(reader.read(3, 1 << 20)) == [2]
    reader.close()
    log.close()


def test_an_absent_log_has_nothing_to_read(tmp_path: Path) -> None:
    assert list_segments(tmp_path / "no") == []
    assert LogReader(tmp_path / "no").read(10, 100) == []


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=15),
    st.integers(1, 300),
    st.integers(60, 600),
)
def test_a_reader_follows_a_living_writer_over_segments_up_to_its_limit(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], max_bytes: int, segment_bytes: int
) -> None:
    # Invariant: whatever is committed and below the limit is read, once, in order; nothing at or above the limit is.
    directory = tmp_path_factory.mktemp("log")
    log = SegmentLog(directory, OWNER, segment_bytes=segment_bytes)
    reader = LogReader(directory)
    seen: list[int] = []
    for n_records, behind in steps:
        fill(log, n_records, each=2)
        limit = max(0, log.next_number - behind)
        while items := reader.read(limit, max_bytes):
            seen += numbers_of(items)
        assert seen == list(range(max(limit, len(seen))))
    log.close()
    reader.close()


def test_a_reader_in_another_thread_sees_every_record_once(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER, segment_bytes=2_000)
    synced = 0
    seen: list[int] = []
    done = threading.Event()

    def follow() -> None:
        reader = LogReader(tmp_path)
        while not done.is_set() or len(seen) < 300:
            seen.extend(numbers_of(reader.read(synced, 500)))
        reader.close()

    thread = threading.Thread(target=follow)
    thread.start()
    for _ in range(100):
        fill(log, 3)
        synced = log.next_number
    done.set()
    thread.join(WAIT_S)
    log.close()
    assert seen == list(range(300))


def test_a_read_gives_about_what_was_asked_for_also_when_one_record_is_larger(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER)
    for _ in range(10):
        log.append(Kind.BLOCK, bytes(1_000))
    log.commit()
    log.close()
    reader = LogReader(tmp_path)
    reads = []
    while items := reader.read(10, 100):
        reads.append([item.number for item in items if isinstance(item, Record)])
    reader.close()
    assert reads == [[number] for number in range(10)]


def test_a_long_damaged_stretch_is_stepped_over_by_small_reads(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 2)
    log.close()
    path = list_segments(tmp_path)[0][1]
    with open(path, "ab") as file:
        file.write(b"\xff" * 10_000 + encode(Kind.BLOCK, 2, payload_of(2)))
    items = read_all(tmp_path, 3, max_bytes=100)
    assert numbers_of(items) == [0, 1, 2]
    assert [item.end - item.start for item in items if isinstance(item, CorruptRange)] == [10_000]


def test_a_reader_begins_at_its_number_in_whatever_segment_that_is(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER, segment_bytes=200)
    fill(log, 20, each=1)
    for start in range(20):
        assert numbers_of(read_all(tmp_path, 20, start=start)) == list(range(start, 20))
    log.close()
