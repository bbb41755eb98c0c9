"""MLflow's tracking store: what MLflow code logs becomes rows of chiplog; it reads its own writes, and the database."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mlflow.entities import Experiment, LifecycleStage, Metric, Param, Run, RunInfo, RunStatus, RunTag, ViewType
from mlflow.environment_variables import MLFLOW_EXPERIMENT_ID
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, RESOURCE_DOES_NOT_EXIST
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking import SEARCH_MAX_RESULTS_DEFAULT
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
from mlflow.utils.name_utils import _generate_random_name
from mlflow.utils.search_utils import SearchUtils
from mlflow.utils.validation import (
    _validate_experiment_name,
    _validate_experiment_tag,
    _validate_metric,
    _validate_param,
    _validate_tag,
)

from chiplog.integrations.mlflow.addresses import parse_address
from chiplog.integrations.mlflow.experiment_reads import ExperimentReads
from chiplog.integrations.mlflow.experiments import (
    ExperimentBook,
    ExperimentRecord,
    experiment_id_of,
)
from chiplog.integrations.mlflow.library import invalid, is_asked_by, is_read_of_user, lenient, warn
from chiplog.integrations.mlflow.metrics import sorted_history
from chiplog.integrations.mlflow.models.logged_models import RUN_OF_MODELS, LoggedModels
from chiplog.integrations.mlflow.reads import StoredRuns
from chiplog.integrations.mlflow.records import (
    END,
    ENDED,
    EXPERIMENT_TAG,
    MLFLOW_ID,
    RUNNING,
    STAGE,
    START,
    STATUS,
    USER,
    RunRecord,
)
from chiplog.integrations.mlflow.run_logging import RunLogging
from chiplog.integrations.mlflow.run_reads import RunReads
from chiplog.integrations.mlflow.runs import book_of
from chiplog.integrations.mlflow.search import page_of_experiments, page_of_runs
from chiplog.safety.diagnostics import error_line
from chiplog_schemas.interrupts import is_interrupt
from chiplog_schemas.process.recording_dir import recording_dir

_OF_PRIMARY = (MLFLOW_RUN_NAME, START, USER, MLFLOW_ID)  # of the ranks that open a run together rank 0's count


class ChiplogStore(LoggedModels):
    """The store of a `chiplog://` URI in one process."""

    def __init__(self, store_uri: str, artifact_uri: str | None = None) -> None:
        super().__init__()
        try:
            self._address = parse_address(store_uri)
        except ValueError as error:
            raise invalid(str(error)) from None
        if self._address.collector is not None:
            os.environ["CHIPLOG_COLLECTOR"] = self._address.collector  # the agent that this process starts reads it
        self._runs = book_of(self._address)
        self._stored = StoredRuns(self._address)
        self._experiments = ExperimentBook(recording_dir(self._address.directory))
        self._experiment_reads = ExperimentReads(self._address, self._experiments, self._stored)
        self._logging = RunLogging(self._address.is_strict, self._warn)
        self._reads = RunReads(self._address, self._runs, self._stored)

    # -- experiments --

    def create_experiment(self, name: str, artifact_location: str | None = None, tags: Any = None) -> str:
        """Make a project's experiment known; return its ID."""
        _validate_experiment_name(name)
        for tag in tags or ():
            _validate_experiment_tag(tag.key, tag.value)
        if self._experiments.find(experiment_id_of(name)) is not None:
            raise MlflowException(f"Experiment(name={name}) already exists.", RESOURCE_ALREADY_EXISTS)
        if artifact_location:
            warn(f"artifact_location={artifact_location!r:.200} is not used: chiplog keeps the artifacts of its runs")
        return self._experiments.make(name, {tag.key: tag.value for tag in tags or ()})

    def get_experiment(self, experiment_id: str) -> Experiment:
        """Return an experiment. `set_experiment` gets one that this host does not know, too."""
        experiment_id = str(experiment_id)
        found = self._experiment_reads
        if is_asked_by("set_experiment"):
            unknown = ExperimentRecord(experiment_id)
            return found.find_here(experiment_id) or found.to_experiment(experiment_id, unknown)
        experiment = found.find(experiment_id)
        if experiment is None:
            raise MlflowException(f"No Experiment with id={experiment_id} exists", RESOURCE_DOES_NOT_EXIST)
        return experiment

    def get_experiment_by_name(self, experiment_name: str) -> Experiment | None:
        """Return a project's experiment; None if there is none. For `set_experiment` only this host's count."""
        experiment_id = experiment_id_of(experiment_name)
        if is_asked_by("set_experiment") or is_asked_by("_get_experiment_id_from_env"):
            return self._experiment_reads.find_here(experiment_id)
        return self._experiment_reads.find(experiment_id)

    def search_experiments(
        self,
        view_type: int = ViewType.ACTIVE_ONLY,
        max_results: int = SEARCH_MAX_RESULTS_DEFAULT,
        filter_string: str | None = None,
        order_by: Sequence[str] | None = None,
        page_token: str | None = None,
    ) -> PagedList:
        """Return a page of experiments: of this host, and of the runs in the database."""
        found = self._experiment_reads.list_all()
        return PagedList(*page_of_experiments(found, filter_string, view_type, max_results, order_by, page_token))

    @lenient
    def set_experiment_tag(self, experiment_id: str, tag: Any) -> None:
        """Set a tag of an experiment. Its open runs keep it, and those that this host opens later."""
        _validate_experiment_tag(tag.key, tag.value)
        self._change_experiment_tag(experiment_id, tag.key, str(tag.value))

    @lenient
    def delete_experiment_tag(self, experiment_id: str, key: str) -> None:
        """Remove a tag of an experiment."""
        self._change_experiment_tag(experiment_id, key, None)

    def _change_experiment_tag(self, experiment_id: str, key: str, value: str | None) -> None:
        known = self._experiments.find(experiment_id)
        tags = {**(known.tags if known is not None else {}), key: value}
        self._experiments.change(experiment_id, tags={name: text for name, text in tags.items() if text is not None})
        for record in self._runs.list_all():
            if record.is_open and record.experiment_id == experiment_id:
                record.set(EXPERIMENT_TAG + key, json.dumps(value))

    @lenient
    def delete_experiment(self, experiment_id: str) -> None:
        """Hide an experiment on this host. Its runs stay."""
        self._experiments.change(self.get_experiment(experiment_id).experiment_id, is_deleted=True)

    @lenient
    def restore_experiment(self, experiment_id: str) -> None:
        """Show an experiment again."""
        self._experiments.change(experiment_id, is_deleted=False)

    def rename_experiment(self, experiment_id: str, new_name: str) -> None:
        """Refuse: the ID follows from the name."""
        raise invalid(
            f"experiment {experiment_id} cannot be renamed: its ID follows from its name; chiplog edit RUN --project "
            f"{new_name} moves a run"
        )

    # -- runs --

    def create_run(
        self, experiment_id: str | None, user_id: str, start_time: int, tags: Sequence[RunTag], run_name: str | None
    ) -> Run:
        """Open a run: the launch's the first time, else one of its own."""
        experiment_id = str(experiment_id or "0")
        given: dict[str, str | None] = {tag.key: str(tag.value) for tag in tags or ()}
        if run_name and given.get(MLFLOW_RUN_NAME, run_name) != run_name:
            self._warn("start_run", invalid(f"run_name={run_name!r} and the tag {MLFLOW_RUN_NAME} differ"))
        name = run_name or given.get(MLFLOW_RUN_NAME)
        record = self._runs.create(experiment_id, self._experiments.name_of(experiment_id), name)
        known = self._experiments.find(experiment_id)
        record.name = name or (_generate_random_name() if record.describes_run else "")
        if record.name:
            given[MLFLOW_RUN_NAME] = record.name
        given |= {START: str(start_time), USER: user_id or ""}
        if record.inner is not None and not record.inner._membership.identity.run_id_is_final:
            given[MLFLOW_ID] = record.run_id
        for key, value in (known.tags if known is not None else {}).items():
            given[EXPERIMENT_TAG + key] = json.dumps(value)
        for tag_key, text in given.items():
            self._logging.set_tags(record, {tag_key: text}, record.describes_run or tag_key not in _OF_PRIMARY)
        return self._reads.to_run(record)

    def get_run(self, run_id: str) -> Run:
        """Return a run: as this process has written it, for MLflow's own calls; for users also as it is stored."""
        own = self._runs.find(run_id)
        if own is not None and not is_read_of_user():
            return self._reads.to_run(own)
        if own is None and is_asked_by("start_run", "log_"):
            return self._reads.to_run(self._runs.expect(run_id, MLFLOW_EXPERIMENT_ID.get() or "0"))
        return self._reads.to_run(self._reads.find(run_id, own))

    def update_run_info(
        self, run_id: str, run_status: int | None, end_time: int | None, run_name: str | None
    ) -> RunInfo | None:
        """Begin a run again, end it or name it."""
        status = None if run_status is None else RunStatus.to_string(run_status)
        try:
            record = self._update(run_id, status, end_time, run_name)
        except Exception as error:
            self._warn("update_run_info", error)
            record = self._runs.find(run_id) or self._runs.expect(run_id, "0")
        return self._reads.to_run(record).info

    def _update(self, run_id: str, status: str | None, end_time: int | None, name: str | None) -> RunRecord:
        known = self._runs.find(run_id)
        if status in ENDED and not name and known is not None and known.inner is not None and not known.is_open:
            return known  # it has ended with the process, before MLflow's own hook
        record = self._runs.writer(run_id)
        if status in ENDED:
            self._logging.set_tags(
                record, {STATUS: status, END: str(end_time) if end_time else None}, record.describes_run
            )
        elif status is not None and record.state != "running":
            self._logging.set_tags(record, {STATUS: RUNNING, END: None}, record.describes_run)
            record.state = "running"
        if name:
            self._logging.set_tags(record, {MLFLOW_RUN_NAME: name})
        if status in ENDED:
            self._runs.end(record)
            record.state = "finished"
        return record

    @lenient
    def delete_run(self, run_id: str) -> None:
        """Hide a run from searches: a tag. The data stays."""
        self._logging.set_tags(self._runs.writer(run_id), {STAGE: LifecycleStage.DELETED})

    @lenient
    def restore_run(self, run_id: str) -> None:
        """Show a run again."""
        self._logging.set_tags(self._runs.writer(run_id), {STAGE: LifecycleStage.ACTIVE})

    def _active(self, run_id: str) -> RunRecord:
        """Return a run to log to. Raises MlflowException if it was deleted."""
        record = self._runs.writer(run_id)
        if record.is_deleted and self._address.is_strict:
            raise invalid(f"The run {run_id} must be in the 'active' state. Current state is {LifecycleStage.DELETED}.")
        return record

    # -- logging --

    @lenient
    def log_metric(self, run_id: str, metric: Metric) -> None:
        """Log a value."""
        self._logging.log_metrics(self._active(run_id), (metric,))

    @lenient
    def log_param(self, run_id: str, param: Param) -> None:
        """Log a param. The first value counts."""
        self._log_param(self._active(run_id), param)

    @lenient
    def set_tag(self, run_id: str, tag: RunTag) -> None:
        """Set a tag. The last value of all labels counts."""
        self._set_tag(self._active(run_id), tag)

    @lenient
    def delete_tag(self, run_id: str, key: str) -> None:
        """Remove a tag."""
        record = self._active(run_id)
        if record.tag(key) is None and record.is_created:
            raise MlflowException(f"No tag with name: {key} in run with id {run_id}", RESOURCE_DOES_NOT_EXIST)
        self._logging.set_tags(record, {key: None})

    @lenient
    def log_batch(
        self, run_id: str, metrics: Sequence[Metric], params: Sequence[Param], tags: Sequence[RunTag]
    ) -> None:
        """Log values, params and tags. Each bad one costs itself; with ?strict=1 the call."""
        if self._address.is_strict:
            for number, metric in enumerate(metrics):
                _validate_metric(metric.key, metric.value, metric.timestamp, metric.step, f"metrics[{number}]")
        record = self._active(run_id)
        for param in params:
            self._each("log_param", lambda param: self._log_param(record, param), param)
        self._logging.log_metrics(record, metrics)
        for tag in tags:
            self._each("set_tag", lambda tag: self._set_tag(record, tag), tag)

    def _log_param(self, record: RunRecord, given: Param) -> None:
        self._logging.log_param(record, _validate_param(given.key, given.value))

    def _set_tag(self, record: RunRecord, given: RunTag) -> None:
        tag = _validate_tag(given.key, given.value)
        self._logging.set_tags(record, {tag.key: tag.value})

    # -- reading --

    def get_metric_history(
        self, run_id: str, metric_key: str, max_results: int | None = None, page_token: str | None = None
    ) -> PagedList:
        """Return the values of a metric: for MLflow's own calls this process's, for users those of all labels."""
        own = self._runs.find(run_id)
        if own is not None and not is_read_of_user():
            points = own.metrics.history(metric_key)
        else:
            points = sorted_history(self._reads.history(run_id, metric_key, own))
        first = SearchUtils.parse_start_offset_from_page_token(page_token)
        page = points[first:] if max_results is None else points[first : first + max_results]
        more = first + len(page) < len(points)
        return PagedList(page, SearchUtils.create_page_token(first + len(page)) if more else None)

    def _search_runs(
        self,
        experiment_ids: Sequence[str],
        filter_string: str | None,
        run_view_type: int,
        max_results: int,
        order_by: Sequence[str] | None,
        page_token: str | None,
    ) -> tuple[list[Run], str | None]:
        runs = self._reads.list_all(experiment_ids)
        return page_of_runs(runs, filter_string, run_view_type, max_results, order_by, page_token)

    # -- for what models are kept --

    def _runs_here(self) -> Iterable[RunRecord]:
        return self._runs.list_all()

    def _rows(self, query: str, params: Mapping[str, Any], wait_s: float) -> list[dict[str, Any]]:
        return self._stored.rows(query, params, wait_s)

    def _run_of_models(self, experiment_id: str) -> RunRecord:
        project = self._experiments.name_of(experiment_id)
        return self._runs.writer(RUN_OF_MODELS + experiment_id, experiment_id, project)

    # -- what is wrong --

    def _each(self, name: str, call: Callable[[Any], None], item: Any) -> None:
        try:
            call(item)
        except Exception as error:
            self._warn(name, error)

    def _warn(self, name: str, error: Exception) -> None:
        """Write one line, or raise MLflow's error with ?strict=1."""
        if is_interrupt(error) or (self._address.is_strict and isinstance(error, MlflowException)):
            raise error
        text = error.message if isinstance(error, MlflowException) else f"failed inside: {error_line(error)}"
        warn(f"mlflow.{name}(): {' '.join(text.split())[:300]}")
