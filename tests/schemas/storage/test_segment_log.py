"""The segment log: what was committed is there after every cut and every error of the disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_schemas.storage import segment_log
from chiplog_schemas.storage.record import HEADER_BYTES, Kind
from chiplog_schemas.storage.segment_format import (
    SEGMENT_HEADER_BYTES,
    decode_header,
    list_segments,
    read_segment,
    segment_name,
)
from chiplog_schemas.storage.segment_log import END_NAME, SegmentError, SegmentLog
from chiplog_schemas.storage.watermark import Watermark
from tests.support.segments import OWNER, fill, numbers_of, payload_of, read_all
from tests.support.waiting import WAIT_S


def test_what_is_appended_and_committed_is_read_back(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path / "log", OWNER)
    fill(log, 20)
    assert numbers_of(read_all(tmp_path / "log", log.next_number)) == list(range(20))
    assert log.size_bytes == sum(path.stat().st_size for _, path in log.segments())
    log.close()


@pytest.mark.promise(2)
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


def test_a_log_of_another_owner_is_refused(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 1)
    log.close()
    with pytest.raises(SegmentError, match="belongs to"):
        SegmentLog(tmp_path, bytes(16))


def test_a_failed_write_keeps_everything_for_the_next_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 3)
    size = log.segments()[0][1].stat().st_size
    real = os.writev

    def half(descriptor: int, parts: list[bytes]) -> int:
        real(descriptor, [b"".join(bytes(part) for part in parts)[:10]])
        raise OSError(28, "no space left on device")

    log.append(Kind.BLOCK, payload_of(3))
    monkeypatch.setattr(segment_log.os, "writev", half)
    with pytest.raises(OSError, match="no space"):
        log.commit()
    assert log.segments()[0][1].stat().st_size == size
    monkeypatch.setattr(segment_log.os, "writev", real)
    log.append(Kind.BLOCK, payload_of(4))
    log.commit()
    assert numbers_of(read_all(tmp_path, 5)) == [0, 1, 2, 3, 4]
    log.close()


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SegmentLog(tmp_path, OWNER)
    fill(log, 1)
    real = os.writev
    monkeypatch.setattr(
        segment_log.os, "writev", lambda fd, parts: real(fd, [b"".join(bytes(part) for part in parts)[:7]])
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
from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.segment_log import SegmentLog
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
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.stdout.strip() == "held", done.stderr
