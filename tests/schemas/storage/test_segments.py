"""The segment log: what was committed is there after every cut; a reader sees all of it, and nothing too early."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiplog_schemas.storage import segments
from chiplog_schemas.storage.record import HEADER_BYTES, CorruptRange, Kind, Record, encode
from chiplog_schemas.storage.segments import (
    END_NAME,
    SEGMENT_HEADER_BYTES,
    LogReader,
    SegmentError,
    SegmentHeader,
    SegmentLog,
    decode_header,
    encode_header,
    list_segments,
    read_segment,
    segment_name,
)
from chiplog_schemas.storage.watermark import Watermark

OWNER = bytes(range(16))


def payload_of(number: int) -> bytes:
    return f"record {number}".encode() * (1 + number % 7)


def fill(log: SegmentLog, count: int, *, each: int = 3) -> None:
    for index in range(count):
        number = log.next_number
        assert log.append(Kind.BLOCK, payload_of(number)) == number
        if index % each == each - 1:
            log.commit()
    log.commit()


def read_all(directory: Path, limit: int, max_bytes: int = 1 << 20, start: int = 0) -> list[Record | CorruptRange]:
    reader = LogReader(directory, start)
    found: list[Record | CorruptRange] = []
    while items := reader.read(limit, max_bytes):
        found += items
    reader.close()
    return found


def numbers_of(items: list[Record | CorruptRange]) -> list[int]:
    for item in items:
        if isinstance(item, Record):
            assert bytes(item.payload) == payload_of(item.number)
    return [item.number for item in items if isinstance(item, Record)]


def test_what_is_appended_and_committed_is_read_back(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path / "log", OWNER)
    fill(log, 20)
    assert numbers_of(read_all(tmp_path / "log", log.next_number)) == list(range(20))
    assert log.size_bytes == sum(path.stat().st_size for _, path in log.segments())
    log.close()


def test_nothing_is_on_disk_before_the_commit_and_what_is_not_committed_is_dropped_at_close(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER)
    log.append(Kind.BLOCK, b"x")
    assert list_segments(tmp_path) == []
    assert log.at_segment_start is False
    log.close()
    assert SegmentLog(tmp_path, OWNER).next_number == 0


def test_segments_roll_over_and_begin_with_their_number(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER, segment_bytes=300)
    fill(log, 40, each=2)
    found = list_segments(tmp_path)
    assert len(found) > 5
    for base, path in found:
        header = decode_header(path.read_bytes())
        assert header is not None
        assert (header.owner, header.base) == (OWNER, base)
        assert numbers_of(list(read_segment(path)))[0] == base
    assert found == log.segments()
    log.close()


def test_a_commit_is_never_split_over_segments_and_begins_one_when_the_last_is_full(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER, segment_bytes=100)
    assert log.at_segment_start
    for _ in range(9):
        log.append(Kind.BLOCK, payload_of(log.next_number))
    log.commit()
    assert len(list_segments(tmp_path)) == 1
    assert log.at_segment_start
    log.close()


def test_trim_deletes_whole_segments_below_the_number_only(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER, segment_bytes=200)
    fill(log, 30, each=1)
    bases = [base for base, _ in log.segments()]
    assert log.trim(bases[3] - 1) == 2
    assert log.trim(bases[3]) == 1
    assert log.first_number == bases[3]
    assert numbers_of(read_all(tmp_path, 30, start=bases[3])) == list(range(bases[3], 30))
    log.close()


def test_trim_empties_a_log_whose_last_segment_is_sealed_and_numbers_go_on(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER, segment_bytes=1)
    fill(log, 3, each=1)
    assert log.trim(3) == 3
    assert (log.first_number, log.next_number) == (3, 3)
    fill(log, 1)
    assert [base for base, _ in list_segments(tmp_path)] == [3]
    log.close()


def test_trim_leaves_the_segment_that_is_being_written(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 3)
    assert log.trim(3) == 0
    log.close()


def test_trim_survives_a_segment_that_is_gone_or_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SegmentLog(tmp_path, OWNER, segment_bytes=1)
    fill(log, 3, each=1)
    log.segments()[0][1].unlink()
    assert log.trim(1) == 1

    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", refuse)
    assert log.trim(2) == 1
    log.close()


def test_reopening_after_a_cut_at_every_byte_keeps_what_was_whole_and_goes_on(tmp_path: Path) -> None:
    first = SegmentLog(tmp_path / "whole", OWNER)
    fill(first, 5, each=1)
    first.close()
    data = list_segments(tmp_path / "whole")[0][1].read_bytes()
    ends = [SEGMENT_HEADER_BYTES]
    for number in range(5):
        ends.append(ends[-1] + HEADER_BYTES + len(payload_of(number)))
    for cut in range(len(data) + 1):
        directory = tmp_path / f"cut{cut}"
        directory.mkdir()
        (directory / segment_name(0)).write_bytes(data[:cut])
        Watermark(directory / END_NAME, writable=True)  # nothing of it was synced
        log = SegmentLog(directory, OWNER)
        n_whole = sum(end <= cut for end in ends[1:])
        assert log.next_number == n_whole
        assert log.torn_bytes == (cut if n_whole == 0 else cut - ends[n_whole])
        fill(log, 2)
        assert numbers_of(read_all(directory, log.next_number)) == list(range(n_whole + 2))
        log.close()


def test_zeros_behind_the_tail_are_cut_off_like_a_torn_record(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 3)
    log.close()
    path = list_segments(tmp_path)[0][1]
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(bytes(1_000))
    log = SegmentLog(tmp_path, OWNER)
    assert (log.next_number, log.torn_bytes, path.stat().st_size) == (3, 1_000, size)
    log.close()


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


def test_a_log_of_another_owner_is_refused(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 1)
    log.close()
    with pytest.raises(SegmentError, match="belongs to"):
        SegmentLog(tmp_path, bytes(16))


def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    for name in ("x.seg", "²².seg", "1.tmp", "notes"):
        (tmp_path / name).write_bytes(b"?")
    assert list_segments(tmp_path) == []
    assert SegmentLog(tmp_path, OWNER).next_number == 0


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
    thread.join(120)
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


def test_a_failed_write_keeps_everything_for_the_next_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 3)
    size = log.segments()[0][1].stat().st_size
    real = os.writev

    def half(descriptor: int, parts: list[bytes]) -> int:
        real(descriptor, [b"".join(bytes(part) for part in parts)[:10]])
        raise OSError(28, "no space left on device")

    log.append(Kind.BLOCK, payload_of(3))
    monkeypatch.setattr(segments.os, "writev", half)
    with pytest.raises(OSError, match="no space"):
        log.commit()
    assert log.segments()[0][1].stat().st_size == size
    monkeypatch.setattr(segments.os, "writev", real)
    log.append(Kind.BLOCK, payload_of(4))
    log.commit()
    assert numbers_of(read_all(tmp_path, 5)) == [0, 1, 2, 3, 4]
    log.close()


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 1)
    real = os.writev
    monkeypatch.setattr(
        segments.os, "writev", lambda fd, parts: real(fd, [b"".join(bytes(part) for part in parts)[:7]])
    )
    log.append(Kind.BLOCK, payload_of(1))
    log.append(Kind.BLOCK, payload_of(2))
    log.commit()
    assert numbers_of(read_all(tmp_path, 3)) == [0, 1, 2]
    log.close()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from chiplog_schemas.storage.record import Record
from chiplog_schemas.storage.segments import LogReader, SegmentLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in range(1, 588, 9):
    directory = Path(sys.argv[1]) / str(limit)
    log = SegmentLog(directory, bytes(16))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    refused = 0
    for number in range(10):
        log.append(2, b"%d" % number * 30)
        try:
            log.commit()
        except OSError:
            refused += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert refused > 0, limit
    log.commit()
    log.close()
    items = LogReader(directory).read(10, 1 << 20)
    assert [(i.number, bytes(i.payload)) for i in items] == [(n, b"%d" % n * 30) for n in range(10)], (limit, items)
    assert SegmentLog(directory, bytes(16)).torn_bytes == 0
print("held")
"""


def test_a_disk_that_is_full_at_any_byte_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.stdout.strip() == "held", done.stderr
