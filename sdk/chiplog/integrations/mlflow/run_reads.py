"""What MLflow's calls read of runs: what this process has written, and what the database has."""

from collections import Counter
from collections.abc import Sequence

from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from chiplog.integrations.mlflow.addresses import Address
from chiplog.integrations.mlflow.models.logged_models import RUN_OF_MODELS, inputs_of, outputs_of
from chiplog.integrations.mlflow.reads import OWN_WAIT_S, WAIT_S, StoredRuns
from chiplog.integrations.mlflow.records import MLFLOW_ID, RunRecord, merge, to_run
from chiplog.integrations.mlflow.runs import RunBook


class RunReads:
    """Read the runs of one store. runs: those of this process. stored: those of the database."""

    def __init__(self, address: Address, runs: RunBook, stored: StoredRuns) -> None:
        self._address = address
        self._runs = runs
        self._stored = stored

    def find(self, run_id: str, own: RunRecord | None) -> RunRecord:
        """Return what is known of a run. Raises MlflowException if it is not this process's, and not stored."""
        try:
            stored = self._stored.find(run_id, OWN_WAIT_S if own is not None and own.is_created else WAIT_S)
        except MlflowException:
            if own is None or not own.is_created:
                raise
            stored = None
        if own is not None and (stored is not None or own.inner is not None):
            return merge(own, stored)
        if stored is None:
            raise MlflowException(f"Run with id={run_id} not found", RESOURCE_DOES_NOT_EXIST)
        return stored

    def to_run(self, record: RunRecord) -> Run:
        """Return MLflow's form of a run."""
        kept = {key: tag.value for key, tag in list(record.tags.items()) if tag.value is not None}
        return to_run(self._address, record, inputs_of(kept), outputs_of(kept))

    def history(self, run_id: str, key: str, own: RunRecord | None) -> list[Metric]:
        """Return the values of a metric of all labels, also those of this process that are not stored yet."""
        try:
            primary, points = self._stored.history(
                run_id, key, OWN_WAIT_S if own is not None and own.is_created else WAIT_S
            )
        except MlflowException:
            if own is None or not own.is_created:
                raise
            primary, points = None, []
        if own is None or own.inner is None:
            return points
        prefix = "" if own.is_primary_of(primary) else f"{own.inner.label}/"
        if not key.startswith(prefix):
            return points
        own_key = key.removeprefix(prefix)
        known = Counter(map(_mark_of, points))
        for point in own.metrics.history(own_key):
            mark = _mark_of(point)
            known[mark] -= 1
            if known[mark] < 0:
                points.append(Metric(key, point.value, point.timestamp, point.step))
        return points

    def list_all(self, experiment_ids: Sequence[str]) -> list[Run]:
        """Return the runs of some experiments."""
        ids = [str(experiment_id) for experiment_id in experiment_ids]
        found = {record.run_id: record for record in self._stored.list_all(ids)}
        by_mlflow_id = {record.tag(MLFLOW_ID): record.run_id for record in found.values()}
        for own in self._runs.list_all():
            stored = found.pop(by_mlflow_id.get(own.run_id, own.run_id), None)
            if stored is not None:
                found[own.run_id] = merge(own, stored)
            elif own.is_created and own.experiment_id in ids:
                found[own.run_id] = merge(own, None)
        return [self.to_run(record) for key, record in found.items() if not key.startswith(RUN_OF_MODELS)]


def _mark_of(point: Metric) -> tuple[int, int, float | str]:
    return point.step, point.timestamp, "nan" if point.value != point.value else point.value
