"""MLflow's tracking store: what MLflow code logs becomes rows of chiplog; it reads its own writes, and the database."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mlflow.entities import Experiment, LifecycleStage, Metric, Param, Run, RunInfo, RunStatus, RunTag, ViewType
from mlflow.environment_variables import MLFLOW_EXPERIMENT_ID
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, RESOURCE_ALREADY_EXISTS, RESOURCE_DOES_NOT_EXIST
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking import SEARCH_MAX_RESULTS_DEFAULT
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE
from mlflow.utils.name_utils import _generate_random_name
from mlflow.utils.search_utils import SearchUtils
from mlflow.utils.validation import (
    _validate_experiment_name,
    _validate_experiment_tag,
    _validate_metric,
    _validate_param,
    _validate_tag,
)

from chiplog.integrations.mlflow.addresses import artifact_uri, parse_address
from chiplog.integrations.mlflow.experiments import (
    ExperimentBook,
    ExperimentRecord,
    experiment_id_of,
    to_experiment,
)
from chiplog.integrations.mlflow.library import invalid, is_asked_by, is_read_of_user, lenient, warn
from chiplog.integrations.mlflow.metrics import sorted_history
from chiplog.integrations.mlflow.models.logged_models import RUN_OF_MODELS, LoggedModels, inputs_of, link, outputs_of
from chiplog.integrations.mlflow.reads import OWN_WAIT_S, WAIT_S, StoredRuns
from chiplog.integrations.mlflow.records import (
    END,
    ENDED,
    EXPERIMENT_TAG,
    MLFLOW_ID,
    PARAM,
    RUNNING,
    STAGE,
    START,
    STATUS,
    USER,
    RunRecord,
    merge,
    to_run,
)
from chiplog.integrations.mlflow.runs import book_of
from chiplog.integrations.mlflow.search import page_of_experiments, page_of_runs
from chiplog.safety.diagnostics import Diagnostic, error_line
from chiplog_schemas.interrupts import is_interrupt
from chiplog_schemas.process.recording_dir import recording_dir

_OF_PRIMARY = (MLFLOW_RUN_NAME, START, USER, MLFLOW_ID)  # of the ranks that open a run together rank 0's count
_KEYS_MAX = 10_000  # names of metrics that were found valid


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
        self._valid_keys: set[str] = set()

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
        record = self._experiments.find(experiment_id)
        if is_asked_by("set_experiment"):
            return self._to_experiment(experiment_id, record or ExperimentRecord(experiment_id))
        stored = self._stored_experiments(record is not None).get(experiment_id)
        if record is None and stored is None:
            raise MlflowException(f"No Experiment with id={experiment_id} exists", RESOURCE_DOES_NOT_EXIST)
        return self._to_experiment(experiment_id, _merged(record, stored))

    def get_experiment_by_name(self, experiment_name: str) -> Experiment | None:
        """Return a project's experiment; None if there is none. For `set_experiment` only this host's count."""
        experiment_id = experiment_id_of(experiment_name)
        record = self._experiments.find(experiment_id)
        if is_asked_by("set_experiment") or is_asked_by("_get_experiment_id_from_env"):
            return None if record is None else self._to_experiment(experiment_id, record)
        stored = self._stored_experiments(record is not None).get(experiment_id)
        if record is None and stored is None:
            return None
        return self._to_experiment(experiment_id, _merged(record, stored))

    def search_experiments(
        self,
        view_type: int = ViewType.ACTIVE_ONLY,
        max_results: int = SEARCH_MAX_RESULTS_DEFAULT,
        filter_string: str | None = None,
        order_by: Sequence[str] | None = None,
        page_token: str | None = None,
    ) -> PagedList:
        """Return a page of experiments: of this host, and of the runs in the database."""
        known, stored = self._experiments.list_all(), self._stored_experiments(False)
        found = [self._to_experiment(key, _merged(known.get(key), stored.get(key))) for key in {**known, **stored}]
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

    def _to_experiment(self, experiment_id: str, record: ExperimentRecord) -> Experiment:
        return to_experiment(experiment_id, record, artifact_uri(self._address, "experiments", experiment_id))

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
            self._set_tags(record, {tag_key: text}, record.describes_run or tag_key not in _OF_PRIMARY)
        return self._to_run(record)

    def get_run(self, run_id: str) -> Run:
        """Return a run: as this process has written it, for MLflow's own calls; for users also as it is stored."""
        own = self._runs.find(run_id)
        if own is not None and not is_read_of_user():
            return self._to_run(own)
        if own is None and is_asked_by("start_run", "log_"):
            return self._to_run(self._runs.expect(run_id, MLFLOW_EXPERIMENT_ID.get() or "0"))
        return self._to_run(self._find(run_id, own))

    def _find(self, run_id: str, own: RunRecord | None) -> RunRecord:
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

    def _to_run(self, record: RunRecord) -> Run:
        kept = {key: tag.value for key, tag in list(record.tags.items()) if tag.value is not None}
        return to_run(self._address, record, inputs_of(kept), outputs_of(kept))

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
        return self._to_run(record).info

    def _update(self, run_id: str, status: str | None, end_time: int | None, name: str | None) -> RunRecord:
        known = self._runs.find(run_id)
        if status in ENDED and not name and known is not None and known.inner is not None and not known.is_open:
            return known  # it has ended with the process, before MLflow's own hook
        record = self._runs.writer(run_id)
        if status in ENDED:
            self._set_tags(record, {STATUS: status, END: str(end_time) if end_time else None}, record.describes_run)
        elif status is not None and record.state != "running":
            self._set_tags(record, {STATUS: RUNNING, END: None}, record.describes_run)
            record.state = "running"
        if name:
            self._set_tags(record, {MLFLOW_RUN_NAME: name})
        if status in ENDED:
            self._runs.end(record)
            record.state = "finished"
        return record

    @lenient
    def delete_run(self, run_id: str) -> None:
        """Hide a run from searches: a tag. The data stays."""
        self._set_tags(self._runs.writer(run_id), {STAGE: LifecycleStage.DELETED})

    @lenient
    def restore_run(self, run_id: str) -> None:
        """Show a run again."""
        self._set_tags(self._runs.writer(run_id), {STAGE: LifecycleStage.ACTIVE})

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
        self._log_metrics(self._active(run_id), (metric,))

    @lenient
    def log_param(self, run_id: str, param: Param) -> None:
        """Log a param. The first value counts."""
        self._log_param(self._active(run_id), _validate_param(param.key, param.value))

    @lenient
    def set_tag(self, run_id: str, tag: RunTag) -> None:
        """Set a tag. The last value of all labels counts."""
        self._set_valid_tag(self._active(run_id), _validate_tag(tag.key, tag.value))

    @lenient
    def delete_tag(self, run_id: str, key: str) -> None:
        """Remove a tag."""
        record = self._active(run_id)
        if record.tag(key) is None and record.is_created:
            raise MlflowException(f"No tag with name: {key} in run with id {run_id}", RESOURCE_DOES_NOT_EXIST)
        self._set_tags(record, {key: None})

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
            self._each(
                "log_param", lambda param: self._log_param(record, _validate_param(param.key, param.value)), param
            )
        self._log_metrics(record, metrics)
        for tag in tags:
            self._each("set_tag", lambda tag: self._set_valid_tag(record, _validate_tag(tag.key, tag.value)), tag)

    def _log_metrics(self, record: RunRecord, metrics: Iterable[Metric]) -> None:
        """Log values, those of one step and time as one event."""
        inner = record.inner
        assert inner is not None
        numbers: dict[str, float] = {}
        at: tuple[int, int] = (0, 0)
        for metric in metrics:
            key, step, time_ms, value = metric.key, metric.step, metric.timestamp, metric.value
            if not (key in self._valid_keys and type(value) is float and type(step) is int and type(time_ms) is int):
                try:
                    _validate_metric(key, value, time_ms, step)
                    step, time_ms, value = int(step), int(time_ms), float(value)
                except Exception as error:
                    self._warn("log_metric", error)
                    continue
                if len(self._valid_keys) < _KEYS_MAX:
                    self._valid_keys.add(key)
            has_model = metric.model_id is not None
            if has_model:
                link(record, metric)
            if not record.metrics.add(key, step, time_ms, value, is_resent=has_model):
                continue  # sent again by log_model
            if numbers and (at != (step, time_ms) or key in numbers):
                inner._log_at(at[0], at[1] * 1000, numbers)
                numbers = {}
            at = step, time_ms
            numbers[key] = value
        if numbers:
            inner._log_at(at[0], at[1] * 1000, numbers)

    def _log_param(self, record: RunRecord, param: Param) -> None:
        before = record.params.setdefault(param.key, param.value)
        if before == param.value and record.tag(PARAM + param.key) is None:
            record.set(PARAM + param.key, param.value)
        elif before != param.value:
            line = (
                f"Changing param values is not allowed. Param with key='{param.key}' was already logged with value="
                f"'{before}' for run ID='{record.run_id}'. Attempted logging new value '{param.value}'."
            )
            if self._address.is_strict:
                raise MlflowException(line, INVALID_PARAMETER_VALUE)
            if record.inner is not None:
                message = f"param {param.key!r:.80} is {before!r:.80} already; {param.value!r:.80} is not recorded"
                record.inner._report_fault(
                    Diagnostic("param_changed", param.key, f"{message}: log it under another name")
                )

    def _set_valid_tag(self, record: RunRecord, tag: RunTag) -> None:
        self._set_tags(record, {tag.key: tag.value})

    def _set_tags(self, record: RunRecord, tags: dict[str, str | None], is_emitted: bool = True) -> None:
        for key, value in tags.items():
            record.set(key, value, is_emitted=is_emitted)
        inner = record.inner
        if inner is None or not is_emitted or not inner.is_primary:
            return
        if name := tags.get(MLFLOW_RUN_NAME):
            inner.name = name
        if note := tags.get(MLFLOW_RUN_NOTE):
            inner.notes = note

    # -- reading --

    def get_metric_history(
        self, run_id: str, metric_key: str, max_results: int | None = None, page_token: str | None = None
    ) -> PagedList:
        """Return the values of a metric: for MLflow's own calls this process's, for users those of all labels."""
        own = self._runs.find(run_id)
        if own is not None and not is_read_of_user():
            points = own.metrics.history(metric_key)
        else:
            points = sorted_history(self._history(run_id, metric_key, own))
        first = SearchUtils.parse_start_offset_from_page_token(page_token)
        page = points[first:] if max_results is None else points[first : first + max_results]
        more = first + len(page) < len(points)
        return PagedList(page, SearchUtils.create_page_token(first + len(page)) if more else None)

    def _history(self, run_id: str, key: str, own: RunRecord | None) -> list[Metric]:
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

    def _search_runs(
        self,
        experiment_ids: Sequence[str],
        filter_string: str | None,
        run_view_type: int,
        max_results: int,
        order_by: Sequence[str] | None,
        page_token: str | None,
    ) -> tuple[list[Run], str | None]:
        ids = [str(experiment_id) for experiment_id in experiment_ids]
        found = {record.run_id: record for record in self._stored.list_all(ids)}
        by_mlflow_id = {record.tag(MLFLOW_ID): record.run_id for record in found.values()}
        for own in self._runs.list_all():
            stored = found.pop(by_mlflow_id.get(own.run_id, own.run_id), None)
            if stored is not None:
                found[own.run_id] = merge(own, stored)
            elif own.is_created and own.experiment_id in ids:
                found[own.run_id] = merge(own, None)
        runs = [self._to_run(record) for key, record in found.items() if not key.startswith(RUN_OF_MODELS)]
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


def _mark_of(point: Metric) -> tuple[int, int, float | str]:
    return point.step, point.timestamp, "nan" if point.value != point.value else point.value
