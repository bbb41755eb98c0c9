"""Experiments: a project each, whose ID follows from its name, so that all nodes agree without asking."""

import hashlib
import json
import logging
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlflow.entities import Experiment, ExperimentTag, LifecycleStage

from chiplog.integrations.mlflow.library import warn
from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.clock import now_us
from chiplog_schemas.paths import ensure_private_dir

DEFAULT_ID, DEFAULT_NAME = "0", "Default"
_ID = re.compile(r"[1-9]\d{17}")
_SPAN = 9 * 10**17  # numbers of 18 digits
_KNOWN_MAX = 10_000  # experiments in memory
_log = logging.getLogger("chiplog")


def experiment_id_of(project: str | None) -> str:
    """Return the ID of a project's experiment: 18 digits. Runs without a project are in MLflow's default experiment.

    The project of a run whose process knew only an ID, from MLFLOW_EXPERIMENT_ID, is that ID.
    """
    if not project or project == DEFAULT_NAME:
        return DEFAULT_ID
    if _ID.fullmatch(project):
        return project
    return str(10**17 + int.from_bytes(hashlib.sha256(project.encode("utf-8", "replace")).digest()[:8]) % _SPAN)


@dataclass(frozen=True)
class ExperimentRecord:
    """What this host knows of an experiment. Times are in milliseconds."""

    name: str
    tags: dict[str, str] = field(default_factory=dict)
    created_ms: int = 0
    updated_ms: int = 0
    is_deleted: bool = False


class ExperimentBook:
    """The experiments that this host has made: a file each below CHIPLOG_DIR, by ID.

    A child of a process that called `set_experiment` gets only the ID: here it finds the name.
    """

    def __init__(self, root: Path) -> None:
        self._directory = root / "mlflow" / "experiments"
        self._known: dict[str, ExperimentRecord] = {}

    def find(self, experiment_id: str) -> ExperimentRecord | None:
        """Return what is known of an experiment; None if no process of this host has made it."""
        record = self._read(self._directory / f"{experiment_id}.json") if _ID.fullmatch(experiment_id) else None
        record = record or self._known.get(experiment_id)
        if record is None and experiment_id == DEFAULT_ID:
            record = ExperimentRecord(DEFAULT_NAME)
        return record

    def name_of(self, experiment_id: str) -> str:
        """Return the project of an experiment. Without a name it is the ID."""
        record = self._known.get(experiment_id) or self.find(experiment_id)
        return experiment_id if record is None else record.name

    def list_all(self) -> dict[str, ExperimentRecord]:
        """Return all that are known, by ID."""
        try:
            ids = [path.stem for path in self._directory.glob("*.json")]
        except OSError:
            ids = []
        found = {name: self.find(name) for name in (DEFAULT_ID, *self._known, *ids)}
        return {name: record for name, record in found.items() if record is not None}

    def make(self, name: str, tags: dict[str, str] | None = None) -> str:
        """Keep a new experiment; return its ID."""
        now_ms = now_us() // 1000
        experiment_id = experiment_id_of(name)
        self._keep(experiment_id, ExperimentRecord(name, dict(tags or {}), now_ms, now_ms))
        return experiment_id

    def change(self, experiment_id: str, **changes: object) -> ExperimentRecord:
        """Keep what has changed: tags or is_deleted."""
        record = self.find(experiment_id) or ExperimentRecord(experiment_id)
        record = replace(record, updated_ms=now_us() // 1000, **changes)  # type: ignore[arg-type]
        self._keep(experiment_id, record)
        return record

    def _keep(self, experiment_id: str, record: ExperimentRecord) -> None:
        if len(self._known) < _KNOWN_MAX:
            self._known[experiment_id] = record
        try:
            ensure_private_dir(self._directory.parent)
            ensure_private_dir(self._directory)
            atomic_write(self._directory / f"{experiment_id}.json", json.dumps(vars(record)).encode())
        except OSError as error:
            warn(f"experiment {record.name!r:.80} is known to this process only: {self._directory} {error.strerror}")

    def _read(self, path: Path) -> ExperimentRecord | None:
        try:
            return ExperimentRecord(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):  # no such file, or one of another version
            return None


def to_experiment(experiment_id: str, record: ExperimentRecord, artifact_location: str) -> Experiment:
    """Return an experiment as MLflow has it."""
    return Experiment(
        experiment_id,
        record.name,
        artifact_location,
        LifecycleStage.DELETED if record.is_deleted else LifecycleStage.ACTIVE,
        [ExperimentTag(key, value) for key, value in record.tags.items()],
        record.created_ms,
        record.updated_ms,
    )
