"""Logged models, and the datasets and models that runs use and make, for MLflow's tracking store: tags of the runs."""

import uuid
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModel,
    LoggedModelInput,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    RunInputs,
    RunOutputs,
)
from mlflow.entities.dataset_summary import _DatasetSummary
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking import SEARCH_LOGGED_MODEL_MAX_RESULTS_DEFAULT
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT
from mlflow.utils.name_utils import _generate_random_name
from mlflow.utils.search_utils import SearchLoggedModelsUtils
from mlflow.utils.validation import _validate_dataset_inputs, _validate_logged_model_name

from chiplog.integrations.mlflow.addresses import Address, artifact_uri
from chiplog.integrations.mlflow.empty_pages import EmptyPages
from chiplog.integrations.mlflow.experiments import experiment_id_of
from chiplog.integrations.mlflow.library import invalid, is_asked_by, is_read_of_user, lenient
from chiplog.integrations.mlflow.models import model_records
from chiplog.integrations.mlflow.models.model_records import ModelMetric, ModelRecord
from chiplog.integrations.mlflow.reads import OWN_WAIT_S, WAIT_S
from chiplog.integrations.mlflow.records import RunRecord
from chiplog_schemas.clock import now_us

_SUMMARIES_MAX = 1_000  # datasets in an answer, as MLflow's stores have it
_IS_MODEL = f"starts_with(key, '{model_records.MODEL}')"
_IS_METRIC = f"starts_with(key, '{model_records.METRIC}')"
_MODELS = f"""
WITH m AS (SELECT run_id, split_part(key, '/', 2) AS model, key, value FROM run_tags WHERE {_IS_MODEL} OR {_IS_METRIC})
SELECT run_id, key, value FROM m WHERE model IN (
    SELECT model FROM m WHERE {_IS_MODEL} AND {{}} AND key = '{model_records.MODEL}' || model
)
"""
_BY_ID = _MODELS.format("model = $model")
_BY_EXPERIMENT = _MODELS.format("list_contains($experiments, try_cast(value AS JSON) ->> 'experiment_id')")
_INPUTS = f"""
SELECT r.run_id, r.project, t.key, t.value FROM run_tags t JOIN runs r ON r.run_id = t.run_id
WHERE starts_with(t.key, '{model_records.INPUT}')
"""
RUN_OF_MODELS = "mlflow-models-"  # and the ID of an experiment: the run that keeps models which no run has logged
TagsOfRuns = dict[str, dict[str, str]]  # by run


def inputs_of(tags: Mapping[str, str]) -> RunInputs:
    """Return the datasets and models that a run used."""
    datasets = [
        DatasetInput(Dataset(**found["dataset"]), [InputTag(key, value) for key, value in found["tags"].items()])
        for found in model_records.dataset_inputs_of(tags)
    ]
    return RunInputs(datasets, [LoggedModelInput(model_id) for model_id in model_records.model_inputs_of(tags)])


def outputs_of(tags: Mapping[str, str]) -> RunOutputs:
    """Return the models that a run logged."""
    return RunOutputs([LoggedModelOutput(model_id, step) for model_id, step in model_records.model_outputs_of(tags)])


class _ModelSearch(SearchLoggedModelsUtils):  # type: ignore[misc]  # MLflow is not typed here
    """MLflow's filter, by which a model matches with any of its values of a metric, as in MLflow's SQL store."""

    @classmethod
    def _does_logged_model_match_clause(
        cls, model: LoggedModel, condition: dict[str, Any], datasets: list[dict[str, Any]] | None = None
    ) -> bool:
        matches = super()._does_logged_model_match_clause
        if not cls.is_metric(condition.get("type"), str(condition.get("comparator"))):
            return bool(matches(model, condition, datasets))
        return any(matches(SimpleNamespace(metrics=[metric]), condition, datasets) for metric in model.metrics)


class LoggedModels(EmptyPages):
    """The part of a tracking store that keeps models. The store says which runs it writes, and asks the database."""

    _address: Address

    # -- of each store --

    def _active(self, run_id: str) -> RunRecord:
        """Return a run that is open for writing here. Raises MlflowException."""
        raise NotImplementedError

    def _runs_here(self) -> Iterable[RunRecord]:
        """Return the runs that this process writes."""
        raise NotImplementedError

    def _run_of_models(self, experiment_id: str) -> RunRecord:
        """Return the run that keeps the models of an experiment that no run has logged."""
        raise NotImplementedError

    def _rows(self, query: str, params: Mapping[str, Any], wait_s: float) -> list[dict[str, Any]]:
        """Return what the database answers. Raises MlflowException."""
        raise NotImplementedError

    # -- inputs and outputs --

    @lenient
    def log_inputs(
        self, run_id: str, datasets: list[DatasetInput] | None = None, models: list[LoggedModelInput] | None = None
    ) -> None:
        """Record the datasets and models that a run uses."""
        _validate_dataset_inputs(datasets or [])
        record = self._active(run_id)
        for given in datasets or ():
            tags = {tag.key: tag.value for tag in given.tags}
            _keep_first(record, model_records.dataset_input(given.dataset.to_dictionary(), tags))
        for model in models or ():
            _keep(record, model_records.model_input(model.model_id))

    @lenient
    def log_outputs(self, run_id: str, models: list[LoggedModelOutput]) -> None:
        """Record the models that a run makes."""
        record = self._active(run_id)
        for model in models:
            _keep_first(record, model_records.model_output(model.model_id, model.step))

    def _search_datasets(self, experiment_ids: Iterable[str]) -> list[_DatasetSummary]:
        """Return the datasets that the runs of some experiments used, for the page."""
        wanted = set(experiment_ids)
        tags: dict[tuple[str, str], dict[str, str]] = {}
        for row in self._rows(_INPUTS, {}, WAIT_S):
            if (experiment_id := experiment_id_of(row["project"])) in wanted:
                tags.setdefault((experiment_id, row["run_id"]), {})[row["key"]] = row["value"]
        found = {
            (
                experiment_id,
                given["dataset"]["name"],
                given["dataset"]["digest"],
                given["tags"].get(MLFLOW_DATASET_CONTEXT),
            )
            for (experiment_id, _), of_run in tags.items()
            for given in model_records.dataset_inputs_of(of_run)
        }
        return [_DatasetSummary(*summary) for summary in sorted(found, key=str)[:_SUMMARIES_MAX]]

    # -- models --

    def create_logged_model(
        self,
        experiment_id: str = "0",
        name: str | None = None,
        source_run_id: str | None = None,
        tags: list[Any] | None = None,
        params: list[Any] | None = None,
        model_type: str | None = None,
    ) -> LoggedModel:
        """Record a new model: with the run that logs it."""
        _validate_logged_model_name(name)
        record = self._active(source_run_id) if source_run_id else self._run_of_models(experiment_id)
        now_ms = now_us() // 1000
        model = ModelRecord(
            f"m-{uuid.uuid4().hex}",
            record.run_id,
            str(experiment_id),
            name or _generate_random_name(),
            model_type,
            source_run_id,
            now_ms,
            now_ms,
            tags={tag.key: str(tag.value) for tag in tags or ()},
            params={param.key: str(param.value) for param in params or ()},
        )
        _keep(record, model_records.created(model))
        return self._to_model(model, [])

    def log_logged_model_params(self, model_id: str, params: list[Any]) -> None:
        """Record params of a model."""
        self._change(model_id, "param", {param.key: str(param.value) for param in params})

    def set_logged_model_tags(self, model_id: str, tags: list[Any]) -> None:
        """Set tags of a model."""
        self._change(model_id, "tag", {tag.key: str(tag.value) for tag in tags})

    def delete_logged_model_tag(self, model_id: str, key: str) -> None:
        """Remove a tag of a model. Raises MlflowException if it has none."""
        if key not in self._find_model(model_id)[0].tags:
            raise MlflowException(
                f"No tag with key {key!r} found for model with ID {model_id!r}.", RESOURCE_DOES_NOT_EXIST
            )
        self._change(model_id, "tag", {key: None})

    def _change(self, model_id: str, what: str, values: Mapping[str, str | None]) -> None:
        run_id = self._find_model(model_id)[0].run_id
        _keep(self._active(run_id), model_records.named(model_id, what, values))

    def finalize_logged_model(self, model_id: str, status: LoggedModelStatus) -> LoggedModel:
        """Record the status of a model."""
        record = self._active(self._find_model(model_id)[0].run_id)
        _keep(record, model_records.with_status(model_id, str(LoggedModelStatus(status)), None, now_us() // 1000))
        return self._to_model(*self._find_model(model_id))

    def delete_logged_model(self, model_id: str) -> None:
        """Hide a model. Its artifacts stay."""
        record = self._active(self._find_model(model_id)[0].run_id)
        _keep(record, model_records.deleted(model_id, now_us() // 1000))

    def get_logged_model(self, model_id: str, allow_deleted: bool = False) -> LoggedModel:
        """Return a model. Raises MlflowException if there is none, or it was deleted."""
        model, metrics = self._find_model(model_id)
        if model.is_deleted and not allow_deleted:
            raise _unknown(model_id)
        return self._to_model(model, metrics)

    def search_logged_models(
        self,
        experiment_ids: list[str],
        filter_string: str | None = None,
        datasets: list[dict[str, Any]] | None = None,
        max_results: int | None = None,
        order_by: list[dict[str, Any]] | None = None,
        page_token: str | None = None,
    ) -> PagedList:
        """Return a page of the models that match, by MLflow's own filter and order. Raises MlflowException."""
        if datasets and not all(dataset.get("dataset_name") for dataset in datasets):
            raise invalid("`dataset_name` in the `datasets` clause must be specified.")
        wanted = [str(experiment_id) for experiment_id in experiment_ids]
        tags = self._with_own(self._tags_of_experiments(wanted))
        metrics = _metrics_in(tags)
        found = [
            self._to_model(model, metrics.get(model.model_id, []), is_for_search=True)
            for model in _models_in(tags)
            if model.experiment_id in wanted and not model.is_deleted
        ]
        matching = _ModelSearch.filter_logged_models(found, filter_string, datasets)
        ordered = _ModelSearch.sort(matching, order_by)
        limit = max_results or SEARCH_LOGGED_MODEL_MAX_RESULTS_DEFAULT
        return PagedList(*_ModelSearch.paginate(ordered, page_token, limit))

    def _tags_of_experiments(self, experiment_ids: list[str]) -> TagsOfRuns:
        """Return what the database has of models. MLflow's own calls can do without it, and log_table must."""
        if is_asked_by("log_table"):
            return {}
        is_for_run = is_asked_by("_get_logged_model_artifact_repo") and bool(_models_in(self._with_own({})))
        try:
            wait_s = OWN_WAIT_S if is_for_run else WAIT_S
            return self._tags_of(_BY_EXPERIMENT, {"experiments": experiment_ids}, wait_s)
        except MlflowException:
            if not is_for_run:
                raise
            return {}

    def _find_model(self, model_id: str) -> tuple[ModelRecord, list[ModelMetric]]:
        """Return a model and its metrics: what this process has logged from memory. Raises MlflowException."""
        own = self._with_own({})
        is_own = any(model.model_id == model_id for model in _models_in(own))
        if is_own and not is_read_of_user():
            tags = own
        else:
            try:
                wait_s = OWN_WAIT_S if is_own else WAIT_S
                tags = self._with_own(self._tags_of(_BY_ID, {"model": model_id}, wait_s))
            except MlflowException:
                if not is_own:
                    raise
                tags = own
        for model in _models_in(tags):
            if model.model_id == model_id:
                return model, _metrics_in(tags).get(model_id, [])
        raise _unknown(model_id)

    def _tags_of(self, query: str, params: Mapping[str, Any], wait_s: float) -> TagsOfRuns:
        found: TagsOfRuns = {}
        for row in self._rows(query, params, wait_s):
            found.setdefault(row["run_id"], {})[row["key"]] = row["value"]
        return found

    def _with_own(self, stored: TagsOfRuns) -> TagsOfRuns:
        """Return tags of runs with what this process has set and removed since."""
        found: dict[str, dict[str, str | None]] = {run_id: dict(tags) for run_id, tags in stored.items()}
        for record in self._runs_here():
            run_id = record.run_id if record.inner is None else record.inner.id
            of_run = found.setdefault(run_id, {})
            for key, tag in list(record.tags.items()):
                if key.startswith(model_records.MODEL):
                    of_run[key] = tag.value
            of_run |= record.links.copy()
        return {
            run_id: {key: value for key, value in tags.items() if value is not None} for run_id, tags in found.items()
        }

    def _to_model(
        self, model: ModelRecord, metrics: Iterable[ModelMetric], *, is_for_search: bool = False
    ) -> LoggedModel:
        shown = sorted(metrics, key=lambda metric: (metric.key, metric.time_ms, metric.step, metric.run_id))
        return LoggedModel(
            experiment_id=model.experiment_id,
            model_id=model.model_id,
            name=model.name,
            artifact_location=artifact_uri(self._address, model.run_id, "models", model.model_id),
            creation_timestamp=model.created_ms,
            last_updated_timestamp=model.updated_ms,
            model_type=model.model_type,
            source_run_id=model.source_run_id,
            status=LoggedModelStatus(model.status),
            status_message=model.status_message,
            tags=model.tags,
            params=model.params,
            metrics=[_to_metric(model.model_id, metric) for metric in shown] or ([] if is_for_search else None),
        )


def link(record: RunRecord, metric: Metric) -> None:
    """Record that a metric of a run belongs to a model."""
    dataset = metric.dataset_name, metric.dataset_digest
    given = ModelMetric(
        metric.key, float(metric.value), int(metric.step), int(metric.timestamp), *dataset, record.run_id
    )
    for key, value in model_records.linked(metric.model_id, given):
        record.link(key, value)


def _keep(record: RunRecord, pairs: Iterable[tuple[str, str | None]]) -> None:
    for key, value in pairs:
        record.set(key, value)


def _keep_first(record: RunRecord, pairs: Iterable[tuple[str, str | None]]) -> None:
    """Set tags unless they are set: the first dataset of a name and digest counts, and the first step of a model."""
    found = list(pairs)
    if record.tag(found[0][0]) is None:
        _keep(record, found)


def _models_in(tags: TagsOfRuns) -> list[ModelRecord]:
    return [model for run_id, of_run in tags.items() for model in model_records.models_of(run_id, of_run)]


def _metrics_in(tags: TagsOfRuns) -> dict[str, list[ModelMetric]]:
    found: dict[str, list[ModelMetric]] = {}
    for run_id, of_run in tags.items():
        for model_id, metrics in model_records.metrics_of(run_id, of_run).items():
            found.setdefault(model_id, []).extend(metrics)
    return found


def _to_metric(model_id: str, metric: ModelMetric) -> Metric:
    return Metric(
        metric.key,
        metric.value,
        metric.time_ms,
        metric.step,
        model_id,
        metric.dataset_name,
        metric.dataset_digest,
        metric.run_id,
    )


def _unknown(model_id: str) -> MlflowException:
    return MlflowException(f"Logged model with ID '{model_id}' not found.", RESOURCE_DOES_NOT_EXIST)
