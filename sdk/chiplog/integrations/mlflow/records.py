"""A run as this process or the database knows it, and as MLflow shows it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from mlflow.entities import LifecycleStage, Metric, Param, RunData, RunInfo, RunInputs, RunOutputs, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME

from chiplog.integrations.mlflow.addresses import Address, artifact_uri
from chiplog.integrations.mlflow.metrics import LoggedMetrics
from chiplog.recording.run.run import Run
from chiplog_schemas.clock import now_us

RESERVED = "chiplog:"  # tags of ours: what MLflow has of a run and chiplog lacks. MLflow does not show them
PARAM = f"{RESERVED}param/"  # the first value of each counts; the view `config` shows them
EXPERIMENT_TAG = f"{RESERVED}experiment_tag/"
STATUS, STAGE = f"{RESERVED}status", f"{RESERVED}lifecycle_stage"
USER, START, END = f"{RESERVED}user_id", f"{RESERVED}start_time", f"{RESERVED}end_time"
MLFLOW_ID = f"{RESERVED}run_id"  # the ID that start_run() returned, if the ranks have agreed on another one since
_LINKS_MAX = 100_000  # of a run in memory, some 400 bytes each; the database has the others
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
ENDED = (FINISHED, FAILED, KILLED)
_STATUS_OF_STATE = {"finished": FINISHED, "failed": FAILED, "crashed": FAILED}


@dataclass(frozen=True, slots=True)
class Tag:
    """The value of a tag, None if it was removed; the label that set it, and when: µs since the epoch."""

    value: str | None
    label: str
    ts: int
    is_emitted: bool = True  # False: known to this process alone, which is not the one that describes the run


class ArtifactFile(NamedTuple):
    """A file of a run, and when it was saved: µs since the epoch."""

    size: int
    sha256: bytes
    ts: int


@dataclass
class RunRecord:
    """What is known of a run. Times are in milliseconds."""

    run_id: str
    experiment_id: str
    name: str = ""
    state: str = "running"  # chiplog's
    primary_label: str | None = None
    created_ms: int = 0
    ended_ms: int | None = None
    tags: dict[str, Tag] = field(default_factory=dict)  # with RESERVED ones
    params: dict[str, str] = field(default_factory=dict)
    metrics: LoggedMetrics = field(default_factory=LoggedMetrics)
    stored_metrics: list[Metric] = field(default_factory=list)  # the latest value of each, from the database
    # -- of a run that this process writes --
    files: dict[str, ArtifactFile] = field(default_factory=dict)  # by name in the run
    links: dict[str, str | None] = field(default_factory=dict)  # tags that link metrics to models: the newest
    inner: Run | None = None
    is_created: bool = False  # by this process or its launch; else it has joined it
    is_adopted: bool = False  # the script has opened it with chiplog.init(), and ends it

    @property
    def is_open(self) -> bool:
        """Return True if its events are recorded as they come."""
        return self.inner is not None and not self.inner._finished

    @property
    def describes_run(self) -> bool:
        """Return True if name, user and end are this label's to set: of the ranks of a launch rank 0's."""
        return self.inner is not None and (self.inner.is_primary or not self.is_created)

    def is_primary_of(self, primary_label: str | None) -> bool:
        """Return True if this process writes as the run's primary. primary_label: None until the database knows it."""
        if self.inner is None:
            return False
        if primary_label is None:
            return self.is_created and self.inner.is_primary
        return self.inner.label == primary_label

    def set(self, key: str, value: str | None, *, is_emitted: bool = True) -> None:
        """Set a tag, or remove it."""
        self.tags[key] = Tag(value, "" if self.inner is None else self.inner.label, now_us(), is_emitted)
        if is_emitted and self.inner is not None:
            self.inner._set_tag(key, value)

    def link(self, key: str, value: str | None) -> None:
        """Set a tag that links a metric to a model. There may be one for each value that is logged."""
        self.links[key] = value
        if len(self.links) > _LINKS_MAX:
            self.links.pop(next(iter(self.links), key), None)
        if self.inner is not None:
            self.inner._set_tag(key, value)

    def tag(self, key: str) -> str | None:
        """Return the value of a tag."""
        found = self.tags.get(key)
        return None if found is None else found.value

    @property
    def status(self) -> str:
        """MLflow's status: as it was set, unless the primary's process still runs, or has died."""
        found, by_state = self.tags.get(STATUS), _STATUS_OF_STATE.get(self.state, RUNNING)
        if found is None or found.value not in ENDED:
            return by_state
        is_of_primary = self.inner is not None or self.primary_label in (None, found.label)
        return found.value if is_of_primary or by_state != RUNNING else RUNNING

    @property
    def is_deleted(self) -> bool:
        """Return True after `delete_run`."""
        return self.tag(STAGE) == str(LifecycleStage.DELETED)

    @property
    def start_ms(self) -> int:
        """When it began."""
        return _number(self.tag(START)) or self.created_ms

    @property
    def end_ms(self) -> int | None:
        """When it ended; None while it runs."""
        return (_number(self.tag(END)) or self.ended_ms) if self.status in ENDED else None

    @property
    def run_name(self) -> str:
        """The name that people read."""
        return self.tag(MLFLOW_RUN_NAME) or self.name or self.run_id

    def shown_tags(self) -> list[RunTag]:
        """Return the tags that MLflow shows."""
        found = {key: tag.value for key, tag in list(self.tags.items()) if not key.startswith(RESERVED)}
        found.setdefault(MLFLOW_RUN_NAME, self.run_name)
        return [RunTag(key, value) for key, value in found.items() if value is not None]

    def latest_metrics(self) -> list[Metric]:
        """Return the latest value of each metric: of this process, and of the database."""
        return _latest_of(self.metrics.latest(), self.stored_metrics)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None


def to_run(
    address: Address, record: RunRecord, inputs: RunInputs | None = None, outputs: RunOutputs | None = None
) -> MlflowRun:
    """Return a run as MLflow has it."""
    info = RunInfo(
        run_id=record.run_id,
        experiment_id=record.experiment_id,
        user_id=record.tag(USER) or "",
        status=record.status,
        start_time=record.start_ms,
        end_time=record.end_ms,
        lifecycle_stage=LifecycleStage.DELETED if record.is_deleted else LifecycleStage.ACTIVE,
        artifact_uri=artifact_uri(address, record.run_id),
        run_name=record.run_name,
    )
    data = RunData(
        metrics=record.latest_metrics(),
        params=[Param(key, value) for key, value in list(record.params.items())],
        tags=record.shown_tags(),
    )
    return MlflowRun(
        info, data, inputs or RunInputs(dataset_inputs=[], model_inputs=[]), outputs or RunOutputs(model_outputs=[])
    )


def merge(own: RunRecord, stored: RunRecord | None) -> RunRecord:
    """Return what this process and the database know of a run together. stored: None before the database knows it."""
    stored = stored or RunRecord(own.run_id, own.experiment_id, created_ms=own.created_ms, params=own.params)
    is_primary = own.is_primary_of(stored.primary_label)
    is_described_here = own.is_created and own.describes_run
    has_own_state = is_described_here or (not own.is_created and own.state == "running")
    # Until rank 0 is known, the state of a launch's run is that of the ranks that have ended.
    others_state = "running" if own.is_created and stored.primary_label is None else stored.state
    prefix = "" if is_primary or own.inner is None else f"{own.inner.label}/"
    own_metrics = [_renamed(metric, prefix) for metric in own.metrics.latest()]
    return RunRecord(
        run_id=own.run_id,
        experiment_id=own.experiment_id if own.is_created else stored.experiment_id,
        name=own.name if is_described_here else stored.name or own.name,
        state=own.state if has_own_state else others_state,
        primary_label=stored.primary_label,
        created_ms=own.created_ms if is_described_here else stored.created_ms,
        ended_ms=stored.ended_ms,
        tags=_newest(own.tags, stored.tags),
        params={**own.params, **stored.params},
        stored_metrics=_latest_of(own_metrics, stored.stored_metrics),
        inner=own.inner if is_primary else None,
        is_created=own.is_created,
    )


def _newest(own: dict[str, Tag], stored: dict[str, Tag]) -> dict[str, Tag]:
    found = dict(stored)
    for key, tag in list(own.items()):
        if tag.is_emitted and (key not in found or found[key].ts <= tag.ts):
            found[key] = tag
    return found


def _latest_of(own: list[Metric], stored: list[Metric]) -> list[Metric]:
    """Return of each metric the one at the largest step: a process that was started again may have an earlier one."""
    found = {metric.key: metric for metric in own}
    for metric in stored:
        known = found.setdefault(metric.key, metric)
        if (metric.step, metric.timestamp) > (known.step, known.timestamp):
            found[metric.key] = metric
    return list(found.values())


def _renamed(metric: Metric, prefix: str) -> Metric:
    return metric if not prefix else Metric(prefix + metric.key, metric.value, metric.timestamp, metric.step)
