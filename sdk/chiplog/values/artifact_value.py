"""Artifacts, as `run.log_artifact` knows them: a name, entries, and the digest of their manifest.

The class that users see is in `chiplog.artifacts`.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

LATEST = "latest"


class ArtifactError(RuntimeError):
    """An artifact cannot be read: it is unknown, incomplete or damaged, or the collector does not answer."""


class UnknownArtifactError(ArtifactError):
    """The collector answers, and has no version of this name."""


@dataclass(frozen=True, slots=True)
class ArtifactEntry:
    """What an artifact is made of.

    Args:
        path: Name in the artifact; of a directory, where its files go.
        source: A file or directory of this machine.
        data: A content in memory.
        reference: A URI. `size` and `sha256` are those of its content, as far as they are known.
        given: The path of a file as the script has it, for messages: `source` may be a link to it.

    """

    path: str
    source: str = ""
    data: bytes | None = None
    reference: str = ""
    size: int = 0
    sha256: bytes | None = None
    given: str = ""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A file or reference of a version. omitted: why the version has it without its bytes; empty: it has them."""

    path: str
    size: int
    sha256: bytes | None
    reference: str = ""
    omitted: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactPlace:
    """Where a run records its artifacts and reads them back. url: of a collector; else the data under `root`.

    say_alias: called with project, name, digest, alias, and 1 or 0. wait_s: for the collector, by default.
    """

    project: str
    mode: str
    url: str | None
    root: Path
    wait_s: float
    emit_alias: Callable[[str, str, bytes, str, int], None]


class ArtifactValue:
    """A named set of files. Its methods that add to it never raise: `take_problems` returns what was wrong."""

    name: str
    type: str
    description: str
    metadata: Any  # plain values by name

    def entries(self) -> list[ArtifactEntry]:
        """Return what it is made of."""
        raise NotImplementedError

    def take_problems(self) -> list[str]:
        """Return what could not be added since the last call, one line each."""
        raise NotImplementedError

    def take_aliases(self, more: Any) -> list[str]:
        """Return the aliases that its version gets. more: those of the call."""
        raise NotImplementedError

    def note_logged(self, place: ArtifactPlace, digest: bytes) -> None:
        """Note that it was logged with this digest of its manifest."""
        raise NotImplementedError


def manifest_digest(files: Iterable[ManifestFile]) -> bytes:
    """Return the digest of a manifest, as PROTOCOL.md has it. The order of the files does not matter."""
    lines = (
        f"{file.path}\0{file.size}\0{'' if file.sha256 is None else file.sha256.hex()}\0{file.reference}\n".encode()
        for file in files
    )
    return hashlib.sha256(b"".join(sorted(lines))).digest()


def artifact_class() -> Any:
    """Return the class Artifact. Its package is above the run's, so it is imported by name, when it is used."""
    return import_module("chiplog.artifacts.artifact").Artifact


def find_artifact(place: ArtifactPlace, name: str, type: str | None, timeout_s: float | None) -> Any:
    """Return the artifact that a name means. Raises ArtifactError."""
    return import_module("chiplog.artifacts.artifact").used_artifact(place, name, type, timeout_s)
