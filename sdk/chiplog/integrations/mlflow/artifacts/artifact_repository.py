"""Artifacts for MLflow: files of a run that any label saves, read from this process, the database and the collector."""

import os
from pathlib import Path
from typing import Any

from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException, MlflowNotImplementedException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.store.artifact.artifact_repo import ArtifactRepository

from chiplog.integrations.mlflow.addresses import parse_artifact_uri
from chiplog.integrations.mlflow.artifacts.artifact_files import ArtifactFiles
from chiplog.integrations.mlflow.artifacts.artifact_names import list_directory, name_in_run
from chiplog.integrations.mlflow.library import invalid, warn


class ChiplogArtifactRepository(ArtifactRepository):  # type: ignore[misc]  # MLflow's classes have no types here
    """The artifacts below a URI: of a run, of a model, or of a directory of these.

    What logs never raises: one line reports what is left out. What reads raises MlflowException.
    """

    def __init__(self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        try:
            address, parts = parse_artifact_uri(artifact_uri)
            if not parts:
                raise ValueError(f"artifact URI {artifact_uri!r:.200} names no run; use the artifact_uri of a run")
            self._folder = "/".join(parts[1:])
            self._root = name_in_run(self._folder)
        except ValueError as error:
            raise invalid(str(error)) from None
        self._files = ArtifactFiles(address, parts[0])

    def log_artifact(self, local_file: Any, artifact_path: str | None = None) -> None:
        """Save a file below a directory of the artifacts."""
        self._save(local_file, artifact_path, os.path.basename(os.fspath(local_file)))

    def log_artifacts(self, local_dir: Any, artifact_path: str | None = None) -> None:
        """Save the files of a directory."""
        self._save(local_dir, artifact_path)

    def _save(self, source: Any, *below: str | None) -> None:
        try:
            name = name_in_run(self._folder, *below)
        except ValueError as error:
            warn(f"{source}: {error}; nothing is stored, so give a path below the run's artifacts")
            return
        self._files.save(source, name)

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """Return the files and directories in a directory; none of a file. Raises MlflowException."""
        directory = self._name(path)
        sizes = {name: file.size for name, file in self._files.below(directory).items()}
        return [
            FileInfo(entry.path, entry.size is None, entry.size)
            for entry in list_directory(sizes, directory, self._root)
        ]

    def _download_file(self, remote_file_path: str, local_path: Any) -> None:
        name = self._name(remote_file_path)
        if not self._files.copy(name, Path(local_path)):
            raise MlflowException(f"No such artifact: {remote_file_path!r:.200}", RESOURCE_DOES_NOT_EXIST)

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        """Raise MLflow's error: a run keeps what was logged, until `chiplog rm` removes the run."""
        raise MlflowNotImplementedException("chiplog does not delete single artifacts; `chiplog rm` removes a run")

    def _name(self, path: str | None) -> str:
        try:
            return name_in_run(self._folder, path)
        except ValueError as error:
            raise invalid(str(error)) from None
