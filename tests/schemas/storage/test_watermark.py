"""How far a log is synced: one number in a file, which two processes share and which may be damaged or removed."""

from pathlib import Path

import pytest

from chiplog_schemas.storage.watermark import Watermark, open_watermark


def test_the_synced_position_is_seen_by_the_other_process_at_once(tmp_path: Path) -> None:
    writer = Watermark(tmp_path / "synced", writable=True)
    reader = Watermark(tmp_path / "synced", writable=False)
    assert reader.get() == 0
    for number in (1, 2**40):
        writer.set(number)
        assert reader.get() == number


def test_the_number_is_there_when_its_owner_opens_the_file_again(tmp_path: Path) -> None:
    first = Watermark(tmp_path / "synced", writable=True)
    first.set(7)
    first.close()
    again = Watermark(tmp_path / "synced", writable=True)
    assert (again.is_valid, again.get()) == (True, 7)


@pytest.mark.parametrize("damage", [b"\x08", b"\0" * 12, b"\xff" * 12])
def test_a_damaged_number_is_not_taken_and_the_previous_one_counts(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "synced"
    Watermark(path, writable=True).set(7)
    reader = Watermark(path, writable=False)
    with open(path, "r+b") as file:
        file.write(damage)
    assert reader.get() == 7
    late = Watermark(path, writable=False)
    assert (late.is_valid, late.get()) == (False, 0)


def test_a_file_that_was_truncated_is_read_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "synced"
    Watermark(path, writable=True).set(7)
    reader = Watermark(path, writable=False)
    with open(path, "r+b") as file:
        file.truncate(0)
    assert reader.get() == 7


def test_a_reader_follows_the_file_that_replaces_a_removed_one(tmp_path: Path) -> None:
    path = tmp_path / "synced"
    writer = Watermark(path, writable=True)
    writer.set(7)
    reader = Watermark(path, writable=False)
    path.unlink()
    assert not writer.exists_on_disk
    assert reader.get() == 7, "nothing replaces it yet"
    Watermark(path, writable=True).set(9)
    assert reader.get() == 9


def test_a_disk_that_refuses_the_file_leaves_a_log_without_it(tmp_path: Path) -> None:
    assert open_watermark(tmp_path / "nowhere" / "synced") is None
    with pytest.raises(FileNotFoundError):
        Watermark(tmp_path / "synced", writable=False)
