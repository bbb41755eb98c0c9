"""Files of large results: without a name, bounded together, and never in the room of events."""

import os
from pathlib import Path

import pytest

from chiplog_schemas.query import result_file
from chiplog_schemas.query.result_file import NoRoomError, ResultSpace
from tests.support.safeguard import proves


def test_a_file_has_no_name_and_is_read_by_offset(tmp_path: Path) -> None:
    file = ResultSpace(tmp_path).create()
    file.write(b"abc")
    file.write(memoryview(bytearray(b"defg")))
    assert (file.n_bytes, file.read(2, 3), file.read(5, 100), file.read(7, 1)) == (7, b"cde", b"fg", b"")
    assert os.listdir(tmp_path) == []
    file.close()
    file.close()


@proves("results-on-disk-bounded", "large results take no more of the disk together than the limit", condition=False)
def test_all_files_together_are_bounded_and_a_closed_one_frees_its_space(tmp_path: Path) -> None:
    space = ResultSpace(tmp_path, bytes_max=10)
    first, second = space.create(), space.create()
    first.write(b"1234567")
    with pytest.raises(NoRoomError, match="results that clients are still reading fill the limit of 10 bytes") as error:
        second.write(b"1234")
    assert error.value.is_shared
    first.close()
    second.write(b"1234567890")
    with pytest.raises(NoRoomError, match="result of 11 bytes exceeds the limit of 10 bytes on disk; select") as error:
        second.write(b"1")
    assert not error.value.is_shared
    assert space.n_bytes == 10
    second.close()
    assert space.n_bytes == 0


@proves("results-leave-room-for-events", "large results leave the room for events on the disk", condition=False)
def test_the_room_for_events_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(directory: Path, n_bytes: int) -> str:
        assert (directory, n_bytes) == (tmp_path, result_file._CHECK_BYTES)
        return f"{directory} has 5 bytes free, of which 5 are kept for events; make room"

    file = ResultSpace(tmp_path).create()
    monkeypatch.setattr(result_file, "insufficient_space_reason", reason)
    with pytest.raises(NoRoomError, match=r"has no room: .* kept for events; make room, or select less"):
        file.write(b"1")
    monkeypatch.setattr(result_file, "insufficient_space_reason", lambda *_: None)
    file.write(b"1")
    monkeypatch.setattr(result_file, "insufficient_space_reason", reason)
    file.write(b"2")  # within what the disk was asked for
    with pytest.raises(NoRoomError):
        file.write(bytes(result_file._CHECK_BYTES))
    file.close()
