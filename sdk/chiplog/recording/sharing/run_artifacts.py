"""The artifacts of a run: versions that it logs, uses, and names by aliases."""

import os
from collections.abc import Callable
from typing import Any

from chiplog.recording.sharing.artifacts import ArtifactStorage
from chiplog.safety.boundary import never_raises
from chiplog.safety.text import clean_utf8
from chiplog.settings import RunSettings
from chiplog.values.artifact_value import ArtifactPlace, ArtifactValue, find_artifact
from chiplog_schemas.model.events import EventKind


class RunArtifacts:
    """What `log_artifact` and `use_artifact` of one run do.

    settings: returns those of now. emit: called with the kind and the fields of each event. is_open: called with the
    name of a call; False, with a warning, once the run has finished. ensure_recording: opens an inherited run; whether
    events are recorded.
    """

    def __init__(
        self,
        storage: ArtifactStorage,
        settings: Callable[[], RunSettings],
        emit: Callable[..., None],
        report_error: Callable[[str, Exception], None],
        *,
        is_open: Callable[[str], bool],
        ensure_recording: Callable[[], bool],
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._emit = emit
        self._report_error = report_error
        self._is_open = is_open
        self._ensure_recording = ensure_recording

    @never_raises("log_artifact")
    def log(self, artifact: ArtifactValue, aliases: Any) -> None:
        """Store a version and emit its events. Never raises."""
        if self._is_disabled:
            artifact.note_logged(self._place, b"")
        elif self._is_recorded("log_artifact()"):
            self._storage.log(artifact, self._place, aliases)

    def use(
        self,
        artifact_or_name: ArtifactValue | str,
        type: str | None,
        aliases: list[str] | None,
        timeout_s: float | None,
    ) -> Any:
        """Return a version and emit that this run uses it. Raises ArtifactError."""
        if isinstance(artifact_or_name, ArtifactValue):
            artifact: Any = artifact_or_name
            if artifact.digest is None:
                self.log(artifact, aliases)
        else:
            artifact = find_artifact(self._place, artifact_or_name, type, timeout_s)
        self._note_use(artifact)
        if aliases:
            artifact.aliases = [*artifact.aliases, *aliases]
            artifact.save()
        return artifact

    @never_raises("use_artifact")
    def _note_use(self, artifact: Any) -> None:
        if not self._is_disabled and artifact.digest is not None and self._is_recorded("use_artifact()"):
            of_version = artifact.project or "", artifact.name, bytes.fromhex(artifact.digest or "")
            self._emit(EventKind.ARTIFACT_USE, *of_version)

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self._report_error(where, error)

    @property
    def _is_disabled(self) -> bool:
        return self._settings().mode == "disabled"

    def _is_recorded(self, call: str) -> bool:
        return self._is_open(call) and self._ensure_recording()

    @property
    def _place(self) -> ArtifactPlace:
        settings = self._settings()
        return ArtifactPlace(
            clean_utf8(settings.project or ""),
            settings.mode,
            os.environ.get("CHIPLOG_COLLECTOR") or None,
            settings.places.root,
            settings.limits.artifact_wait_s,
            self._emit_alias,
        )

    @never_raises("artifact.save")
    def _emit_alias(self, project: str, name: str, digest: bytes, alias: str, is_set: int) -> None:
        if not self._is_disabled and self._is_open("artifact.save()"):
            self._emit(EventKind.ARTIFACT_ALIAS, project, name, digest, alias, is_set)
