"""Contents on disk by their digests, names of files in a run, and the space that is kept for events."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from chiplog_schemas.storage.content_files import (
    content_path,
    insufficient_space_reason,
    invalid_path_reason,
    list_contents,
    read_content,
)


def test_only_files_named_by_a_digest_are_contents(tmp_path: Path) -> None:
    names = sorted(sha256(content).hexdigest() for content in (b"a", b"b", b"c"))
    for name in (*names, names[0].upper().replace("0", "A"), names[1] + ".part", names[2][:-1], "lock"):
        (tmp_path / name).touch()
    assert [path.name for path in list_contents(tmp_path)] == names
    assert list_contents(tmp_path / "nowhere") == []
    assert list_contents(tmp_path / "lock") == []


@pytest.mark.parametrize("path", ["model.pt", "a/b/c.txt", "..a/b..", "ü/ ", "x" * 512])
def test_a_relative_path_is_a_name_in_a_run(path: str) -> None:
    assert invalid_path_reason(path) is None


@pytest.mark.parametrize(
    ("path", "words"),
    [
        *((path, "relative") for path in ("", "/etc/passwd", "../a", "a/../b", "a//b", "a/", "./a")),
        *((path, "control characters") for path in ("a\nb", "a\0", "\x7f", "\x9b31m")),
        ("x" * 5_000, "the limit is"),
    ],
)
def test_a_path_that_leads_elsewhere_or_changes_a_terminal_is_refused_with_the_reason(path: str, words: str) -> None:
    reason = invalid_path_reason(path)
    assert reason is not None and words in reason


def test_a_file_that_would_take_the_space_of_events_is_refused(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    assert insufficient_space_reason(tmp_path, -(1 << 60)) is None
    reason = insufficient_space_reason(tmp_path, free)
    assert reason is not None and str(tmp_path) in reason and "kept for events" in reason
    with pytest.raises(OSError):
        insufficient_space_reason(tmp_path / "nowhere", 1)


def test_a_stored_content_is_read_part_by_part(tmp_path: Path) -> None:
    digest = sha256(b"content").digest()
    path = content_path(tmp_path, digest)
    assert path == tmp_path / digest.hex()[:2] / digest.hex()
    path.parent.mkdir()
    path.write_bytes(b"content")
    assert read_content(tmp_path, digest, 0, 4) == (7, b"cont")
    assert read_content(tmp_path, digest, 4, 100) == (7, b"ent")
    assert read_content(tmp_path, digest, 99, 1) == (7, b"")
    with pytest.raises(FileNotFoundError):
        read_content(tmp_path, bytes(32), 0, 1)
