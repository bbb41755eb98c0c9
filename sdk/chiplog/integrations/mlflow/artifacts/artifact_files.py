"""Files of a run: saved by this process, or read from its outbox, the database and the collector's contents."""

import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

import chiplog
from chiplog.artifacts.reads import copy_content
from chiplog.integrations.mlflow.addresses import Address
from chiplog.integrations.mlflow.artifacts.artifact_names import names_below
from chiplog.integrations.mlflow.library import is_asked_by
from chiplog.integrations.mlflow.reads import OWN_WAIT_S, WAIT_S, StoredRuns
from chiplog.integrations.mlflow.records import MLFLOW_ID, ArtifactFile, RunRecord
from chiplog.integrations.mlflow.runs import book_of
from chiplog.media.image import Image
from chiplog.safety.background_threads import is_exiting, result_within
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import MIB
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.recording_dir import recording_dir
from chiplog_schemas.storage.content_files import ANY_LABEL_FOLDER

_PAUSE_S = 0.2  # between two attempts
_SETTLE_S = 3.0  # what another process has just saved is in the database within a second, as a rule
_ID = f"""
SELECT run_id FROM runs WHERE run_id = $run
UNION ALL SELECT run_id FROM run_tags WHERE key = '{MLFLOW_ID}' AND value = $run LIMIT 1
"""
_FILES = "SELECT path, bytes, sha256, epoch_us(ts) AS ts FROM files WHERE run_id = $run AND starts_with(path, $name)"
_IS_COMPLETE = "SELECT coalesce(bool_and(pending = 0), false) AS is_complete FROM completeness WHERE run_id = $run"
_IS_RUNNING = "SELECT coalesce(bool_or(state = 'running'), true) AS is_running FROM labels WHERE run_id = $run"
# How MLflow names the pictures of log_image(key=): 3.17 with + and ~, 3.6 with % and #.
_PICTURE = re.compile(r"mlflow/artifacts/images/(.+)[+%]step[+%](-?\d+)[+%]timestamp[+%]\d+[+%][^/+%]+\.png")


class ArtifactFiles:
    """The files of a run below `mlflow/`, by their name in the run."""

    def __init__(self, address: Address, run_id: str) -> None:
        self._run_id = run_id
        self._address = address
        self._book = book_of(address)
        self._stored = StoredRuns(address)
        self._paths = paths_for_root(recording_dir(address.directory))
        self._stored_id: str | None = None
        self._silent_until = 0.0  # the collector has not answered: what this process has saved is enough until then

    def save(self, source: Any, name: str) -> None:
        """Save a file under a name, or the files of a directory below it. Never raises."""
        record = self._book.writer(self._run_id)
        assert record.inner is not None
        saved = record.inner._files.save_for_any_label(source, name)
        record.files.update((file.path, ArtifactFile(file.size, file.sha256, now_us())) for file in saved)
        if len(saved) == 1 and (picture := _PICTURE.fullmatch(saved[0].path)):
            key, step = picture[1].replace("~", "/").replace("#", "/"), int(picture[2])
            record.inner.log({key: Image(source)}, step=step)

    def below(self, directory: str) -> dict[str, ArtifactFile]:
        """Return the files in a directory, at any depth, by name. Raises MlflowException."""
        record = self._book.find(self._run_id)
        names = () if record is None else names_below(record.files, directory)
        return self._newest(f"{directory}/", record, names)

    def copy(self, name: str, target: Path) -> bool:
        """Write a file; return False if the run has none of this name. Raises MlflowException."""
        file = self._find(name)
        if file is None:
            return False
        until = time.monotonic() + WAIT_S
        while not self._copy_from_outbox(file, target):
            try:
                result_within(
                    WAIT_S + file.size / MIB,
                    lambda: self._copy_from_collector(name, file, target),
                    name="chiplog-mlflow-read",
                )
                return True
            except (chiplog.QueryError, chiplog.NoDataError) as error:  # its bytes come after the event that names it
                if time.monotonic() >= until:
                    message = f"artifact {name!r:.200} of run {self._run_id} cannot be read: {error}"
                    raise MlflowException(message, TEMPORARILY_UNAVAILABLE) from error
            except TimeoutError:
                message = f"artifact {name!r:.200} of run {self._run_id} does not arrive; see chiplog status"
                raise MlflowException(message, TEMPORARILY_UNAVAILABLE) from None
            is_exiting.wait(_PAUSE_S)
        return True

    def _find(self, name: str) -> ArtifactFile | None:
        """Return a file. One that another process has just saved may be on its way: it is waited for."""
        record = self._book.find(self._run_id)
        names = () if record is None or name not in record.files else (name,)
        until = time.monotonic() + _SETTLE_S
        while True:
            if (found := self._newest(name, record, names).get(name)) is not None:
                return found
            is_own = record is not None and record.is_created
            if is_own or time.monotonic() >= until or not self._may_grow():
                return None
            is_exiting.wait(_PAUSE_S)

    def _newest(self, prefix: str, record: RunRecord | None, names: Iterable[str]) -> dict[str, ArtifactFile]:
        """Return the files whose names begin so: of each the one that was saved last, here or elsewhere.

        record: of a run that is written here. names: those of its files that this process has saved.
        """
        own = {} if record is None else {name: record.files[name] for name in names}
        # One process logs a model. And what is logged waits for no collector, unless another process has made the run.
        is_enough = bool(own) and prefix.startswith(f"{ANY_LABEL_FOLDER}models/")
        if is_enough or (record is not None and record.is_created and is_asked_by("log_table")):
            return own
        found = self._list(prefix, record)
        for name, file in own.items():
            if name not in found or found[name].ts <= file.ts:
                found[name] = file
        return found

    def _list(self, prefix: str, record: RunRecord | None) -> dict[str, ArtifactFile]:
        """Return the files of the database whose names begin so. record: of a run that is written here.

        What this process has saved is enough if it has made the run, and the collector does not answer.
        """
        is_own = record is not None and record.is_created
        if is_own and time.monotonic() < self._silent_until:
            return {}
        try:
            wait_s = OWN_WAIT_S if is_own else WAIT_S
            rows = self._stored.rows(_FILES, {"run": self._id_of(record, wait_s), "name": prefix}, wait_s)
        except MlflowException:
            if not is_own:
                raise
            self._silent_until = time.monotonic() + WAIT_S
            return {}
        return {row["path"]: ArtifactFile(row["bytes"], bytes.fromhex(row["sha256"]), row["ts"]) for row in rows}

    def _may_grow(self) -> bool:
        """Return True if files of the run may be on their way to the database."""
        params = {"run": self._id_of(None, WAIT_S)}
        if self._stored.rows(_IS_RUNNING, params)[0]["is_running"]:
            return True
        return not self._stored.rows(_IS_COMPLETE, params)[0]["is_complete"]

    def _id_of(self, record: RunRecord | None, wait_s: float) -> str:
        """Return the ID that the database has: the ranks of a launch may have agreed on another one than MLflow has."""
        if record is not None and record.inner is not None:
            return record.inner.id
        if self._stored_id is None:
            found = self._stored.rows(_ID, {"run": self._run_id}, wait_s)
            self._stored_id = str(found[0]["run_id"]) if found else None
        return self._stored_id or self._run_id

    def _copy_from_outbox(self, file: ArtifactFile, target: Path) -> bool:
        """Copy a content that this node has not delivered yet; return False if it has none."""
        for directory in (self._paths.outbox, self._paths.offline_files):
            try:
                shutil.copyfile(directory / file.sha256.hex(), target)
                return True
            except FileNotFoundError:
                continue  # delivered
        return False

    def _copy_from_collector(self, name: str, file: ArtifactFile, target: Path) -> None:
        with chiplog.connect(self._address.collector, dir=self._address.directory) as client:
            copy_content(client, name, file.sha256.hex(), target, lambda n_bytes: None)
