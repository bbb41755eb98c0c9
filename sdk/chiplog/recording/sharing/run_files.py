"""The files, media and artifacts of a run: which label may save them, and where they go."""

import os
import tempfile
from collections.abc import Callable

from chiplog.identity.identity import Identity
from chiplog.recording.sharing.artifacts import ArtifactStorage
from chiplog.recording.sharing.files import FileSaver, SavedFile
from chiplog.recording.sharing.media import MediaStorage
from chiplog.recording.sharing.run_artifacts import RunArtifacts
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostic, Diagnostics
from chiplog.settings import RunSettings
from chiplog.values.metrics import Media
from chiplog_schemas.interrupts import unless_interrupt
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.storage.content_files import ANY_LABEL_FOLDER


class RunFiles:
    """The contents that one run stores.

    settings: returns those of now. identity: likewise. is_finished: called with the name of a call; True, with a
    warning, once the run has finished. ensure_recording: opens an inherited run; whether events are recorded.
    """

    def __init__(
        self,
        settings: Callable[[], RunSettings],
        identity: Callable[[], Identity],
        emit: Callable[..., None],
        diagnostics: Diagnostics,
        *,
        is_finished: Callable[[str], bool],
        ensure_recording: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._diagnostics = diagnostics
        self._report_internal_error = diagnostics.report_internal_error
        self._is_finished = is_finished
        self._ensure_recording = ensure_recording
        limits, places = settings().limits, settings().places
        self.saver = FileSaver(
            places,
            places.offline_files if settings().mode == "offline" else places.outbox,
            file_bytes_max=limits.file_bytes_max,
            outbox_bytes_max=limits.outbox_bytes_max,
            emit=lambda path, size, digest: emit(EventKind.FILE, path, size, digest),
            report_fault=diagnostics.report,
        )
        self._media = MediaStorage(
            self.saver.store_bytes,
            emit=lambda *fields: emit(EventKind.MEDIA, *fields),
            report_fault=diagnostics.report,
        )
        self.artifacts = RunArtifacts(
            ArtifactStorage(self.saver, emit=emit, report_fault=diagnostics.report),
            settings,
            emit,
            diagnostics.report_internal_error,
            is_open=lambda call: not is_finished(call),
            ensure_recording=ensure_recording,
        )

    def log_media(self, step: int, key: str, value: Media) -> None:
        """Store the contents of a logged value."""
        if self._ensure_recording():
            self._media.log(step, key, value)

    def save(self, path: str | os.PathLike[str], name: str | None) -> list[str]:
        """Save files and return their names in the run; see `Run.save`."""
        if self._is_silent():
            return []
        identity = self._identity()
        if not identity.primary:
            message = f"save() on {identity.label} does nothing: only the primary's files are the run's"
            self._diagnostics.report(Diagnostic("save_not_primary", "", f"{message}; call it where run.is_primary"))
            return []
        return [file.path for file in self.saver.save(path, name)]

    @never_raises("save", otherwise=list)
    def save_for_any_label(self, path: str | os.PathLike[str], name: str) -> list[SavedFile]:
        """Save files below ANY_LABEL_FOLDER, where they are the run's whichever label saves them. Never raises."""
        assert name.startswith(ANY_LABEL_FOLDER)
        if self._is_silent() or not self._ensure_recording():
            return []
        return self.saver.save(path, name)

    def make_directory(self) -> str:
        """Create the directory for files of this label, and return it; see `Run.dir`."""
        if self._settings().mode == "disabled":
            return tempfile.gettempdir()
        identity = self._identity()
        directory = self._settings().places.root / "run-files" / identity.run_id / identity.label
        try:
            ensure_private_dir(directory)
        except unless_interrupt(OSError) as error:
            message = f"run.dir {directory} cannot be created ({error.strerror}); {tempfile.gettempdir()} is used"
            self._diagnostics.warn_once(("run_dir", ""), message)
            return tempfile.gettempdir()
        return str(directory)

    def _is_silent(self) -> bool:
        return self._settings().mode == "disabled" or self._is_finished("save()")
