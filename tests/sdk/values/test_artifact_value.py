"""The digest of a manifest, and what a run knows of an artifact."""

import hashlib

import pytest

from chiplog.values.artifact_value import ArtifactValue, ManifestFile, artifact_class, manifest_digest


def test_the_digest_is_that_of_the_lines_in_the_order_of_the_paths() -> None:
    files = [
        ManifestFile("b", 3, b"\1" * 32),
        ManifestFile("ä", 0, None, "s3://x/y"),
        ManifestFile("a/b", 10, b"\2" * 32),
    ]
    text = f"a/b\0{10}\0{'02' * 32}\0\nb\0{3}\0{'01' * 32}\0\nä\0{0}\0\0s3://x/y\n"
    assert manifest_digest(files) == hashlib.sha256(text.encode()).digest()
    assert manifest_digest(reversed(files)) == manifest_digest(files)
    assert manifest_digest([]) == hashlib.sha256(b"").digest()


def test_a_value_has_entries_and_problems() -> None:
    for ask in ("entries", "take_problems"):
        with pytest.raises(NotImplementedError):
            getattr(ArtifactValue(), ask)()
    for call in (lambda: ArtifactValue().take_aliases(None), lambda: ArtifactValue().note_logged(None, b"")):  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError):
            call()
    assert issubclass(artifact_class(), ArtifactValue)
