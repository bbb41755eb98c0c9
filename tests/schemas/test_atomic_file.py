"""A file is replaced as a whole, is private, and is synced before its name where that is asked for."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_schemas import atomic_file
from chiplog_schemas.atomic_file import atomic_write, link_or_copy


def test_a_file_is_replaced_is_private_and_nothing_else_remains(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"older and longer")
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_exists_stays_where_it_must_not_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(source: Path, target: Path) -> None:  # as s3fs does
        raise OSError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(atomic_file.os, "link", refuse)
    path = tmp_path / "secret"
    atomic_write(path, b"first", replaces=False)
    with pytest.raises(FileExistsError):
        atomic_write(path, b"second", replaces=False)
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["secret"]


def test_a_write_that_fails_leaves_the_file_before_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "no space left on device")

    path = tmp_path / "state"
    path.write_bytes(b"before")
    monkeypatch.setattr(atomic_file.os, "fsync", refuse)
    with pytest.raises(OSError, match="no space"):
        atomic_write(path, b"after", durable=True)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["state"]


def test_a_temporary_file_that_a_killed_writer_left_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / f".state.{os.getpid()}").symlink_to(victim)
    atomic_write(tmp_path / "state", b"new")
    assert victim.read_bytes() == b"kept"
    assert (tmp_path / "state").read_bytes() == b"new"


def test_content_and_name_are_synced_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(atomic_file.os, "fsync", note)
    atomic_write(tmp_path / "status", b"s")
    assert synced == []
    atomic_write(tmp_path / "key", b"k", durable=True)
    assert synced == [False, True], "the content first, then the name"


def test_readers_see_one_of_two_contents_while_a_process_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    atomic_write(path, b"a" * 100_000)
    code = (
        "import sys; from pathlib import Path; from chiplog_schemas.atomic_file import atomic_write\n"
        "for n in range(300): atomic_write(Path(sys.argv[1]), b'ab'[n % 2 : n % 2 + 1] * 100_000)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as writer:
        while writer.poll() is None:
            content = path.read_bytes()
            assert content in (b"a" * 100_000, b"b" * 100_000)
    assert writer.returncode == 0


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_gets_a_second_name_or_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "cross-device link")

    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content")
    target.write_bytes(b"older")
    if not has_links:
        monkeypatch.setattr(atomic_file.os, "link", refuse)
    for _ in range(2):  # the second time both names may be of one file already
        link_or_copy(source, target)
        assert target.read_bytes() == b"content"
        assert source.samefile(target) == has_links
        assert sorted(os.listdir(tmp_path)) == ["source", "target"]
    source.unlink()
    with pytest.raises(FileNotFoundError):
        link_or_copy(source, tmp_path / "other")
