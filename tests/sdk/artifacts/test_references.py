"""References: files of this machine are hashed, addresses elsewhere are kept as they are."""

import hashlib
from pathlib import Path

from chiplog.artifacts.references import entries_of_reference, local_path
from chiplog.values.artifact_value import ArtifactEntry


def test_the_path_of_a_file_is_known_and_that_of_another_address_is_not() -> None:
    assert local_path("file:///a%20b/c") == "/a b/c"
    assert local_path("s3://bucket/key") is None


def test_a_directory_is_an_entry_for_each_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "sub" / "a").write_bytes(b"a")
    found = list(entries_of_reference(tmp_path.as_uri(), "raw", True, lambda bad: None))
    assert found == [
        ArtifactEntry(f"raw/{name}", reference=(tmp_path / name).as_uri(), size=1, sha256=hashlib.sha256(data).digest())
        for name, data in (("b", b"b"), ("sub/a", b"a"))
    ]


def test_without_a_checksum_only_the_size_is_read_and_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    problems: list[str] = []
    [entry] = entries_of_reference((tmp_path / "a").as_uri(), "a", False, problems.append)
    assert (entry.size, entry.sha256, problems) == (5, None, [])
    [entry] = entries_of_reference((tmp_path / "b").as_uri(), "b", True, problems.append)
    assert (entry.size, entry.sha256) == (0, None)
    assert "cannot be read: No such file or directory; it has no checksum" in problems[0]
    [entry] = entries_of_reference("s3://bucket/key", "k", True, problems.append)
    assert entry == ArtifactEntry("k", reference="s3://bucket/key")
