"""`run.log_artifact`: the files go into the outbox by their SHA-256, then events name the manifest and its version."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from chiplog.recording.sharing.files import FileSaver, NotSavedError
from chiplog.safety.diagnostics import Diagnostic, error_text
from chiplog.safety.text import clean_utf8
from chiplog.values.artifact_value import (
    LATEST,
    ArtifactEntry,
    ArtifactPlace,
    ArtifactValue,
    ManifestFile,
    manifest_digest,
)
from chiplog.values.config import to_plain
from chiplog_schemas.interrupts import unless_interrupt
from chiplog_schemas.limits import FILES_PER_SAVE_MAX
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.content_files import invalid_path_reason

_METADATA_BYTES_MAX = 1 << 18  # as JSON: a quarter of an event


class ArtifactStorage:
    """Stores artifacts of one run.

    saver: copies files. emit: called with the kind and the fields of each event. report_fault: called for
    what is left out.
    """

    def __init__(
        self, saver: FileSaver, *, emit: Callable[..., None], report_fault: Callable[[Diagnostic], None]
    ) -> None:
        self._saver = saver
        self._emit = emit
        self._report_fault = report_fault

    def log(self, artifact: ArtifactValue, place: ArtifactPlace, aliases: Any = None) -> None:
        """Store the files of an artifact, and emit its manifest, its version and its aliases."""
        files: dict[str, ManifestFile] = {}
        for file in self._files(artifact):
            if len(files) == FILES_PER_SAVE_MAX and file.path not in files:
                self._refuse(artifact, f"has more than {FILES_PER_SAVE_MAX} files; the others are left out")
                break
            files[file.path] = file
        digest = manifest_digest(files.values())
        for file in files.values():
            entry = file.path, file.size, file.sha256, file.reference, file.omitted
            self._emit(EventKind.ARTIFACT_FILE, digest, *entry)
        described = self._metadata(artifact), _text(artifact.description)
        of_version = place.project, artifact.name
        size = sum(file.size for file in files.values())
        self._emit(EventKind.ARTIFACT, *of_version, _text(artifact.type), digest, len(files), size, *described)
        for alias in artifact.take_aliases(aliases):
            if alias != LATEST:
                self._emit(EventKind.ARTIFACT_ALIAS, *of_version, digest, alias, 1)
        artifact.note_logged(place, digest)
        for problem in artifact.take_problems():
            self._refuse(artifact, problem)

    def _metadata(self, artifact: ArtifactValue) -> str:
        plain = to_plain("metadata", artifact.metadata, self._report_fault)  # scripts assign whatever they have
        metadata = json.dumps(plain if isinstance(plain, dict) else {"metadata": plain})
        if len(metadata) <= _METADATA_BYTES_MAX:
            return metadata
        self._refuse(artifact, f"has metadata of {len(metadata)} bytes, over {_METADATA_BYTES_MAX}; they are left out")
        return "{}"

    def _files(self, artifact: ArtifactValue) -> Iterator[ManifestFile]:
        for entry in artifact.entries():
            if entry.source:
                for source, path in self._saver.files_of(entry.source, entry.path):
                    kept = self._saver.keep(source, path, entry.given or source)
                    if kept is not None:
                        size, sha256, omitted = kept
                        yield ManifestFile(clean_utf8(path), size, sha256, omitted=omitted)
            elif (reason := invalid_path_reason(entry.path)) is not None:
                self._refuse(artifact, f"cannot have an entry {entry.path!r:.80}: {reason}")
            elif entry.data is not None:
                yield from self._content(artifact, entry, entry.data)
            else:
                yield ManifestFile(entry.path, entry.size, entry.sha256, entry.reference)

    def _content(self, artifact: ArtifactValue, entry: ArtifactEntry, data: bytes) -> Iterator[ManifestFile]:
        try:
            yield ManifestFile(entry.path, len(data), self._saver.store_bytes(data))
        except NotSavedError as error:
            self._refuse(artifact, f"lacks {entry.path!r:.80}: {error.args[1]}", error.args[0])
        except unless_interrupt(OSError) as error:
            self._refuse(artifact, f"lacks {entry.path!r:.80}: {error_text(error)}")

    def _refuse(self, artifact: ArtifactValue, why: str, kind: str = "artifact") -> None:
        self._report_fault(Diagnostic(kind, why[:100], clean_utf8(f"artifact {artifact.name!r:.80} {why}")))


def _text(value: Any) -> str:
    """Return a text that a script has assigned."""
    return "" if value is None else clean_utf8(str(value))
