"""Versions of artifacts from the collector, and their files: the one module here that asks it.

Each function waits until the collector answers and has what was asked for, for a time at most, then raises.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import chiplog
from chiplog.artifacts.references import local_path
from chiplog.media.encoding.captured import report_once
from chiplog.safety.background_threads import is_exiting, result_within
from chiplog.safety.diagnostics import Diagnostic
from chiplog.values.artifact_value import (
    ArtifactError,
    ArtifactPlace,
    ManifestFile,
    UnknownArtifactError,
    manifest_digest,
)
from chiplog_schemas.storage.content_files import invalid_path_reason

_SETTLE_S = 5.0  # what other ranks have just logged is in the database within a second, as a rule
_PAUSE_S = 0.2  # between two attempts
_LATE_S = 1.0  # for the answer of an attempt at the end of the time
_ASK_S = 5.0  # one query
_COMES_LATER = frozenset({"unreachable", "stopping", "busy", "timeout"})  # kinds of answers after which a retry helps
_NAMED_MAX = 5  # versions or files in a message
_VERSION = """SELECT project, name, version, type, aliases, metadata::VARCHAR AS metadata, digest, n_files, description
FROM artifacts WHERE project = $project AND name = $name AND {}"""
_FILES = """SELECT path, bytes, sha256, reference, omitted FROM artifact_files
WHERE project = $project AND name = $name AND version = $version ORDER BY path"""
_KNOWN = """SELECT version, aliases FROM artifacts
WHERE project = $project AND name = $name AND version IS NOT NULL ORDER BY version DESC LIMIT $n"""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Version:
    """A version that the collector knows."""

    project: str
    name: str
    version: int
    type: str
    aliases: list[str]
    metadata: dict[str, Any]
    digest: str
    description: str
    files: tuple[ManifestFile, ...]

    def __str__(self) -> str:
        return f"{self.project}/{self.name}:v{self.version}".removeprefix("/")


def find_by_name(place: ArtifactPlace, project: str, name: str, wanted: str, timeout_s: float) -> Version:
    """Return the version of an alias or a number (`v3`). Raises ArtifactError."""
    condition, what = condition_of(wanted)
    return _find(place, project, name, condition, what, timeout_s, min(timeout_s, _SETTLE_S))


def condition_of(wanted: str) -> tuple[str, int | str]:
    """Return the condition of an alias or a number (`v3`), and its value."""
    if wanted[:1] == "v" and wanted[1:].isdecimal() and len(wanted) < 19:
        return "version = $wanted", int(wanted[1:])
    return "list_contains(aliases, $wanted)", wanted


def find_by_digest(place: ArtifactPlace, project: str, name: str, digest: bytes, timeout_s: float) -> Version:
    """Return the version of a digest: one that was just logged, so it comes. Raises ArtifactError."""
    return _find(place, project, name, "digest = $wanted", digest.hex(), timeout_s, timeout_s)


def download(place: ArtifactPlace, version: Version, root: Path, timeout_s: float) -> None:
    """Write the files of a version below a directory, each verified by its SHA-256. Raises ArtifactError.

    A file that the version has without its bytes is reported, and the others are written.
    """
    if omitted := [file for file in version.files if file.omitted]:
        report_once(Diagnostic("artifact_incomplete", str(version), omission_text(version, omitted)))
    with _asking(place, timeout_s) as (client, until):
        for file in version.files:
            if not file.omitted:
                write_file(client, version, file, root / file.path, until=until)


def omission_text(version: Version, omitted: Sequence[ManifestFile]) -> str:
    """Return a line that names files of a version without bytes, at most a few, and the reason of the first."""
    named = ", ".join(f"{file.path!r:.80}" for file in omitted[:_NAMED_MAX])
    more = f" and {len(omitted) - _NAMED_MAX} more" if len(omitted) > _NAMED_MAX else ""
    return f"artifact {version} has no bytes of {named}{more}: {omitted[0].omitted}"


def read(place: ArtifactPlace, version: Version, path: str, timeout_s: float) -> bytes:
    """Return the content of one file. Raises ArtifactError."""
    with tempfile.TemporaryDirectory(prefix="chiplog-") as directory:
        target = Path(directory) / "file"
        download_file(place, version, path, target, timeout_s)
        return target.read_bytes()


def download_file(place: ArtifactPlace, version: Version, path: str, target: Path, timeout_s: float) -> None:
    """Write one file of a version. Raises ArtifactError."""
    [file] = [file for file in version.files if file.path == path]
    with _asking(place, timeout_s) as (client, until):
        write_file(client, version, file, target, until=until)


def version_of(client: "chiplog.Client", project: str, name: str, condition: str, wanted: int | str) -> Version | None:
    """Return a version of the database; None if it has none like this. Raises QueryError, ArtifactError."""
    of_version = {"project": project, "name": name}
    rows = client.sql(_VERSION.format(condition), {**of_version, "wanted": wanted}, timeout_s=_ASK_S).rows()
    if not rows:
        return None
    row = rows[0]
    if row["version"] is None:  # safeguard: version-without-number-waits
        why = "another collector of the store may have logged one before; `chiplog store status` says which is away"
        raise ArtifactError(f"a version of artifact {name!r} of project {project!r} has no number yet: {why}")
    files = client.sql(_FILES, {**of_version, "version": row["version"]}, timeout_s=_ASK_S).rows()
    manifest = tuple(
        ManifestFile(
            str(file["path"]),
            int(file["bytes"]),
            None if file["sha256"] is None else bytes.fromhex(file["sha256"]),
            str(file["reference"] or ""),
            str(file["omitted"] or ""),
        )
        for file in files
    )
    described = (str(row["type"]), list(row["aliases"]), json.loads(row["metadata"]), str(row["digest"]))
    found = Version(project, name, int(row["version"]), *described, str(row["description"]), manifest)
    if manifest_digest(manifest).hex() != found.digest:  # safeguard: artifact-manifest-verified
        why = f"{len(manifest)} of its {row['n_files']} entries are there, or another process changed them"
        raise ArtifactError(f"artifact {found} is not complete in the database: {why}")
    return found


def write_file(
    client: "chiplog.Client",
    version: Version,
    file: ManifestFile,
    target: Path,
    *,
    until: float = 0.0,
    on_bytes: Callable[[int], object] = lambda n_bytes: None,
) -> None:
    """Write one file of a version. Raises ArtifactError.

    until: on the monotonic clock; its bytes come after the events that name it.
    """
    if (reason := invalid_path_reason(file.path)) is not None:  # safeguard: artifact-stays-below-root
        raise ArtifactError(f"file {file.path!r:.80} of artifact {version} cannot be written: {reason}")
    if file.omitted:
        raise ArtifactError(omission_text(version, [file]))
    try:
        if file.reference:
            _copy_reference(version, file, target)
            return
        while True:
            try:
                copy_content(client, file.path, (file.sha256 or b"").hex(), target, on_bytes)
                return
            except chiplog.QueryError as error:
                if time.monotonic() >= until:
                    message = f"file {file.path!r:.80} of artifact {version} cannot be read: {error}"
                    raise ArtifactError(message) from error
            is_exiting.wait(_PAUSE_S)
    except OSError as error:
        verb = "read" if file.reference and error.filename == local_path(file.reference) else "written"
        message = f"{error.filename or target} of artifact {version} cannot be {verb}: {error.strerror}"
        raise ArtifactError(message) from error


def copy_content(
    client: "chiplog.Client", path: str, sha256: str, target: Path, on_bytes: Callable[[int], object]
) -> None:
    """Write a content under a temporary name, verify its digest, and rename it. Raises QueryError, OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with _replacing(target) as part:
        for data in client.read_file(sha256):
            digest.update(data)
            part.write(data)
            on_bytes(len(data))
        if digest.hexdigest() != sha256:  # safeguard: got-file-verified
            raise chiplog.QueryError(
                "internal", f"file {target.name!r} is damaged at the collector: its digest is not {sha256}"
            )


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[Any]:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as part:
            yield part
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _copy_reference(version: Version, file: ManifestFile, target: Path) -> None:
    """Copy a referenced file of this machine. Others stay where they are: chiplog uses no network for them."""
    source = local_path(file.reference)
    if source is None:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(source, "rb") as given, _replacing(target) as part:
        shutil.copyfileobj(given, part)
        given.seek(0)
        if file.sha256 is not None and hashlib.file_digest(given, "sha256").digest() != file.sha256:
            raise ArtifactError(f"{source} has changed since artifact {version} was logged; its digest is another")


def _find(
    place: ArtifactPlace, project: str, name: str, condition: str, wanted: int | str, timeout_s: float, settle_s: float
) -> Version:
    asked = place, project, name, condition, wanted, timeout_s, settle_s
    return _within(timeout_s, lambda: _ask(*asked), drop=lambda late: None)


def _within(timeout_s: float, read: Callable[[], _T], *, drop: Callable[[_T], object]) -> _T:
    """Return what a function reads. The client awaits a stopped collector for a minute: this raises in its time.

    drop: called with what comes too late.
    """
    try:
        return result_within(timeout_s + _LATE_S, read, name="chiplog-artifact", drop=drop)
    except TimeoutError:
        why = "the collector does not answer; see chiplog status"
        raise ArtifactError(f"artifacts cannot be read within {timeout_s:g} s: {why}") from None


def _ask(
    place: ArtifactPlace, project: str, name: str, condition: str, wanted: int | str, timeout_s: float, settle_s: float
) -> Version:
    settled = float("inf")
    with _asking(place, timeout_s) as (client, until):
        while True:
            try:
                if (found := version_of(client, project, name, condition, wanted)) is not None:
                    return found
                settled = min(settled, time.monotonic() + settle_s)
                known = client.sql(_KNOWN, {"project": project, "name": name, "n": _NAMED_MAX}, timeout_s=_ASK_S).rows()
                # No number is given again. Another version or alias may have been logged just now, by any process.
                was_removed = isinstance(wanted, int) and bool(known) and wanted < known[0]["version"]
                if was_removed or time.monotonic() >= min(settled, until):
                    raise UnknownArtifactError(_unknown(project, name, wanted, known))
            except (chiplog.QueryError, ArtifactError) as error:  # its entries may still come
                is_unknown = isinstance(error, ArtifactError) and settled < float("inf")
                if is_unknown or time.monotonic() >= until or not _may_change(error):
                    raise
            is_exiting.wait(_PAUSE_S)


def _unknown(project: str, name: str, wanted: int | str, known: list[dict[str, Any]]) -> str:
    what = f"v{wanted}" if isinstance(wanted, int) else repr(wanted)
    named = ", ".join(" ".join([f"v{row['version']}", *row["aliases"]]) for row in known)
    where = f"artifact {name!r} of project {project!r}"
    return (
        f"{where} has no version {what}; it has {named}"
        if named
        else f"{where} is unknown; `chiplog artifacts` lists all"
    )


def _may_change(error: Exception) -> bool:
    return not isinstance(error, chiplog.QueryError) or error.kind in _COMES_LATER


@contextlib.contextmanager
def _asking(place: ArtifactPlace, timeout_s: float) -> Iterator[tuple["chiplog.Client", float]]:
    """Yield a client and the end of the time. Every failure to read becomes an ArtifactError."""
    until = time.monotonic() + timeout_s
    try:
        with _within(timeout_s, lambda: _connected(place, until), drop=lambda client: client.close()) as client:
            yield client, until
    except (chiplog.QueryError, chiplog.NoDataError, ValueError, OSError) as error:
        is_elsewhere = isinstance(error, chiplog.NoDataError) and not place.url
        remedy = "; if the collector is on another host, set CHIPLOG_COLLECTOR" if is_elsewhere else ""
        raise ArtifactError(f"artifacts cannot be read within {timeout_s:g} s: {error}{remedy}") from error


def _connected(place: ArtifactPlace, until: float) -> "chiplog.Client":
    while True:
        try:
            return chiplog.connect(place.url, dir=None if place.url else place.root)
        except (chiplog.QueryError, chiplog.NoDataError) as error:
            if time.monotonic() >= until or not (isinstance(error, chiplog.NoDataError) or _may_change(error)):
                raise
        is_exiting.wait(_PAUSE_S)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
