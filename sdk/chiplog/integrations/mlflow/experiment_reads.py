"""What MLflow's calls read of experiments: what this host counts, and the projects of the runs in the database."""

import json

from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException

from chiplog.integrations.mlflow.addresses import Address, artifact_uri
from chiplog.integrations.mlflow.experiments import ExperimentBook, ExperimentRecord, experiment_id_of, to_experiment
from chiplog.integrations.mlflow.reads import OWN_WAIT_S, WAIT_S, StoredRuns
from chiplog.integrations.mlflow.records import EXPERIMENT_TAG


class ExperimentReads:
    """Read the experiments of one store. book: those of this host. stored: the runs of the database."""

    def __init__(self, address: Address, book: ExperimentBook, stored: StoredRuns) -> None:
        self._address = address
        self._book = book
        self._stored = stored

    def find_here(self, experiment_id: str) -> Experiment | None:
        """Return an experiment that this host knows."""
        record = self._book.find(experiment_id)
        return None if record is None else self.to_experiment(experiment_id, record)

    def find(self, experiment_id: str) -> Experiment | None:
        """Return an experiment that this host or the database knows."""
        record = self._book.find(experiment_id)
        stored = self._stored_experiments(record is not None).get(experiment_id)
        if record is None and stored is None:
            return None
        return self.to_experiment(experiment_id, _merged(record, stored))

    def list_all(self) -> list[Experiment]:
        """Return the experiments of this host, and of the runs in the database."""
        known, stored = self._book.list_all(), self._stored_experiments(False)
        return [self.to_experiment(key, _merged(known.get(key), stored.get(key))) for key in {**known, **stored}]

    def to_experiment(self, experiment_id: str, record: ExperimentRecord) -> Experiment:
        """Return MLflow's form of an experiment."""
        return to_experiment(experiment_id, record, artifact_uri(self._address, "experiments", experiment_id))

    def _stored_experiments(self, is_known: bool) -> dict[str, ExperimentRecord]:
        """Return the experiments of the runs in the database, by ID. is_known: an answer is not necessary."""
        try:
            wait_s = OWN_WAIT_S if is_known else WAIT_S
            projects, tags = self._stored.projects(wait_s), self._stored.experiment_tags(EXPERIMENT_TAG, wait_s)
        except MlflowException:
            if is_known:
                return {}
            raise
        found: dict[str, ExperimentRecord] = {}
        for row in projects:
            experiment_id, name = experiment_id_of(row["project"]), row["project"] or "Default"
            if experiment_id not in found or name != experiment_id:
                found[experiment_id] = ExperimentRecord(name, {}, row["first"], row["last"])
        for row in tags:
            value, record = json.loads(row["value"]), found.get(experiment_id_of(row["project"]))
            if value is not None and record is not None:
                record.tags[row["key"].removeprefix(EXPERIMENT_TAG)] = value
        return found


def _merged(known: ExperimentRecord | None, stored: ExperimentRecord | None) -> ExperimentRecord:
    """Return what this host and the database know of an experiment."""
    if known is None or stored is None:
        found = known or stored
        assert found is not None
        return found
    return ExperimentRecord(
        known.name,
        {**stored.tags, **known.tags},
        min(known.created_ms or stored.created_ms, stored.created_ms),
        max(known.updated_ms, stored.updated_ms),
        known.is_deleted,
    )
