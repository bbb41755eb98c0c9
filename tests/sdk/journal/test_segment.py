"""The files of a journal: allocated before they are written to, and read after they were unmapped."""

import errno
import os
import shutil
import signal
import stat
import sys
from pathlib import Path

import pytest

from chiplog.journal import segment as segment_module
from chiplog.journal.segment import HeadPage, Segment
from chiplog_schemas.codec import pack
from chiplog_schemas.storage.journal_dir import decode_head
from tests.support.safeguard import proves
from tests.support.signals import handling

SIZE = 1 << 16
PRODUCER = bytes(range(16))


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    segment = Segment(tmp_path / "segment", SIZE)
    segment.memory[:5] = b"bytes"
    segment.end = 5
    return segment


def test_a_segment_has_its_blocks_before_it_is_written_to(segment: Segment, tmp_path: Path) -> None:
    found = os.stat(tmp_path / "segment")
    assert (found.st_size, found.st_blocks * 512 >= SIZE) == (SIZE, True)
    assert stat.S_IMODE(found.st_mode) == 0o1600, "systemd-tmpfiles removes no file with the sticky bit"
    assert (tmp_path / "segment").read_bytes()[:6] == b"bytes\0"


def test_an_unmapped_segment_is_read_from_its_file_and_holds_no_descriptor(segment: Segment) -> None:
    before = os.listdir("/proc/self/fd")
    assert bytes(segment.piece(1, 4)) == b"yte"
    assert str(segment.path) in Path("/proc/self/maps").read_text()
    segment.unmap()
    assert str(segment.path) not in Path("/proc/self/maps").read_text()
    assert bytes(segment.piece(1, 4)) == b"yte"
    with pytest.raises(OSError, match=f"ends at {SIZE}, not at {SIZE + 1}"):
        segment.piece(0, SIZE + 1)
    assert os.listdir("/proc/self/fd") == before


def test_a_segment_that_was_removed_can_be_deleted(segment: Segment, tmp_path: Path) -> None:
    segment.delete()
    segment.delete()
    assert os.listdir(tmp_path) == []


def test_a_file_system_that_refuses_the_sticky_bit_gets_a_plain_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if mode & stat.S_ISVTX:
            raise OSError(errno.EPERM, "no sticky bit")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    Segment(tmp_path / "segment", SIZE)
    assert stat.S_IMODE(os.stat(tmp_path / "segment").st_mode) == 0o600


def test_a_segment_never_takes_a_file_that_exists_and_leaves_none_where_there_is_no_room(tmp_path: Path) -> None:
    (tmp_path / "segment").write_text("another one's")
    with pytest.raises(FileExistsError):
        Segment(tmp_path / "segment", SIZE)
    assert (tmp_path / "segment").read_text() == "another one's"
    with pytest.raises(OSError, match="/large: "):
        Segment(tmp_path / "large", 1 << 62)
    assert os.listdir(tmp_path) == ["segment"]


@proves(
    "exit-passes-removed-segment",
    "sys.exit() passes that a signal handler calls after finish() while a segment is made",
    new="os.unlink(path)",
)
def test_the_exit_of_a_handler_passes_that_removed_the_directory_while_a_segment_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "journal"
    directory.mkdir()

    def finish_and_exit(number: int, frame: object) -> None:
        shutil.rmtree(directory)
        sys.exit(0)

    def map_interrupted(*given: int) -> object:
        signal.raise_signal(signal.SIGUSR1)
        raise AssertionError("the handler exits")

    monkeypatch.setattr(segment_module, "map_file", map_interrupted)
    with handling(signal.SIGUSR1, finish_and_exit), pytest.raises(SystemExit):
        Segment(directory / "segment", SIZE)


def test_without_a_disk_a_segment_is_memory_that_stays(tmp_path: Path) -> None:
    segment = Segment(None, SIZE)
    segment.memory[:5] = b"bytes"
    segment.unmap()
    segment.delete()
    assert bytes(segment.piece(0, 5)) == b"bytes"


def test_a_head_page_has_the_identity_and_the_counts(tmp_path: Path) -> None:
    path = tmp_path / "head"
    page = HeadPage(path, PRODUCER, pack({"label": "rank0"}))
    page.acknowledge(5)
    page.promise(2)
    page.finish(9, 0)
    page.set_identity(pack({"label": "rank1"}))
    head = decode_head(path.read_bytes())
    assert (head.producer, head.identity) == (PRODUCER, {"label": "rank1"})
    assert (head.acked, head.promised, head.produced) == (5, 2, 9)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o1600
