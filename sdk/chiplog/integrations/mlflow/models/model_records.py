"""What a run keeps of logged models, datasets and outputs: tags with a reserved prefix, each with a JSON value (pure).

Each fact is a tag of its own, so that labels that write at the same time lose nothing:

    chiplog:model/ID                what create_logged_model was given
    chiplog:model/ID/status         the status, and when it was set
    chiplog:model/ID/stage          that it was deleted, and when
    chiplog:model/ID/tag/KEY        [KEY, VALUE]
    chiplog:model/ID/param/KEY      [KEY, VALUE]
    chiplog:metric/ID/DIGEST        a metric of the run that belongs to the model: KEY, VALUE, step, time, dataset
    chiplog:input/DIGEST/NUMBER     a part of the JSON of a dataset and its tags, which may be longer than a tag
    chiplog:input_model/ID          a model that the run used
    chiplog:output/ID               a model that the run logged, with the step
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "chiplog:"
MODEL = f"{PREFIX}model/"
METRIC = f"{PREFIX}metric/"
INPUT = f"{PREFIX}input/"
INPUT_MODEL = f"{PREFIX}input_model/"
OUTPUT = f"{PREFIX}output/"
_NAME_BYTES_MAX = 200  # of a name in a key, which may have 512 bytes; a longer one is its digest
_PART_CHARS = 60_000  # of a tag's value, which may have 65,536 characters
Pairs = Iterator[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class ModelMetric:
    """A value that belongs to a model."""

    key: str
    value: float
    step: int
    time_ms: int
    dataset_name: str | None
    dataset_digest: str | None
    run_id: str


@dataclass(slots=True)
class ModelRecord:
    """A logged model as the tags of its run have it. Times are in milliseconds."""

    model_id: str
    run_id: str  # whose tags these are
    experiment_id: str
    name: str
    model_type: str | None
    source_run_id: str | None
    created_ms: int
    updated_ms: int
    status: str = "PENDING"
    status_message: str | None = None
    is_deleted: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)


def created(record: ModelRecord) -> Pairs:
    """Yield the tags of a new model."""
    given = {
        "experiment_id": record.experiment_id,
        "name": record.name,
        "model_type": record.model_type,
        "source_run_id": record.source_run_id,
        "created_ms": record.created_ms,
    }
    yield f"{MODEL}{record.model_id}", json.dumps(given)
    yield from named(record.model_id, "param", record.params)
    yield from named(record.model_id, "tag", record.tags)


def with_status(model_id: str, status: str, message: str | None, at_ms: int) -> Pairs:
    """Yield the tag of a status."""
    yield f"{MODEL}{model_id}/status", json.dumps({"status": status, "message": message, "at_ms": at_ms})


def deleted(model_id: str, at_ms: int) -> Pairs:
    """Yield the tag of a deletion."""
    yield f"{MODEL}{model_id}/stage", json.dumps({"at_ms": at_ms})


def named(model_id: str, what: str, values: Mapping[str, str | None]) -> Pairs:
    """Yield the tags of a model's tags or params. what: tag or param. A value of None removes one."""
    for key, value in values.items():
        yield f"{MODEL}{model_id}/{what}/{_short(key)}", None if value is None else json.dumps([key, value])


def linked(model_id: str, metric: ModelMetric) -> Pairs:
    """Yield the tag of a metric that belongs to a model. One key, step and time is one metric, as in MLflow."""
    of_metric = (metric.key, metric.step, metric.time_ms, metric.run_id)
    digest = hashlib.sha256(repr(of_metric).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    given = [metric.key, repr(metric.value), metric.step, metric.time_ms, metric.dataset_name, metric.dataset_digest]
    yield f"{METRIC}{model_id}/{digest}", json.dumps(given)


def metrics_of(run_id: str, tags: Mapping[str, str]) -> dict[str, list[ModelMetric]]:
    """Return the metrics of each model that a run has logged some for."""
    found: dict[str, list[ModelMetric]] = {}
    for key, text in tags.items():
        if key.startswith(METRIC) and (given := _read(text)) is not None:
            name, value, step, time_ms, dataset_name, dataset_digest = given
            metric = ModelMetric(name, float(value), step, time_ms, dataset_name, dataset_digest, run_id)
            found.setdefault(key.removeprefix(METRIC).partition("/")[0], []).append(metric)
    return found


def dataset_input(dataset: Mapping[str, Any], tags: Mapping[str, str]) -> Pairs:
    """Yield the tags of a dataset that a run used. The same name and digest are the same dataset, as in MLflow."""
    text = json.dumps({"dataset": dict(dataset), "tags": dict(tags)})
    identity = json.dumps([dataset["name"], dataset["digest"]])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    parts = [text[start : start + _PART_CHARS] for start in range(0, len(text), _PART_CHARS)]
    for number, part in enumerate(parts):
        yield f"{INPUT}{digest}/{number}", part


def model_input(model_id: str) -> Pairs:
    """Yield the tag of a model that a run used."""
    yield f"{INPUT_MODEL}{model_id}", "{}"


def model_output(model_id: str, step: int) -> Pairs:
    """Yield the tag of a model that a run logged."""
    yield f"{OUTPUT}{model_id}", json.dumps({"step": step})


def models_of(run_id: str, tags: Mapping[str, str]) -> list[ModelRecord]:
    """Return the models of a run, in the order of their IDs; not those of which only changes have arrived."""
    found = {}
    for key in sorted(tags):
        if not key.startswith(MODEL):
            continue
        model_id, _, rest = key.removeprefix(MODEL).partition("/")
        value = _read(tags[key])
        if not rest and isinstance(value, dict):
            found[model_id] = _record(model_id, run_id, value)
        elif model_id in found and value is not None:
            _add(found[model_id], rest, value)
    return list(found.values())


def _record(model_id: str, run_id: str, given: Mapping[str, Any]) -> ModelRecord:
    created_ms = int(given.get("created_ms", 0))
    texts = (given.get("model_type"), given.get("source_run_id"))
    of_experiment = str(given.get("experiment_id", "")), str(given.get("name", ""))
    return ModelRecord(model_id, run_id, *of_experiment, *texts, created_ms, created_ms)


def _add(record: ModelRecord, rest: str, value: Any) -> None:
    what = rest.partition("/")[0]
    if what in ("tag", "param"):
        (record.tags if what == "tag" else record.params)[value[0]] = value[1]
        return
    record.updated_ms = max(record.updated_ms, int(value["at_ms"]))
    if what == "stage":
        record.is_deleted = True
    else:
        record.status, record.status_message = value["status"], value["message"]


def dataset_inputs_of(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the datasets that a run used, each with its tags."""
    parts: dict[str, dict[int, str]] = {}
    for key, value in tags.items():
        if key.startswith(INPUT):
            digest, _, number = key.removeprefix(INPUT).partition("/")
            parts.setdefault(digest, {})[int(number)] = value
    texts = ("".join(text for _, text in sorted(of_digest.items())) for _, of_digest in sorted(parts.items()))
    return [value for text in texts if (value := _read(text)) is not None]


def model_inputs_of(tags: Iterable[str]) -> list[str]:
    """Return the IDs of the models that a run used."""
    return sorted(key.removeprefix(INPUT_MODEL) for key in tags if key.startswith(INPUT_MODEL))


def model_outputs_of(tags: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the models that a run logged: ID and step."""
    values = {key.removeprefix(OUTPUT): _read(text) for key, text in tags.items() if key.startswith(OUTPUT)}
    return sorted((model_id, int(value["step"])) for model_id, value in values.items() if value is not None)


def _short(name: str) -> str:
    encoded = name.encode("utf-8", "replace")
    return name if len(encoded) <= _NAME_BYTES_MAX else hashlib.sha256(encoded).hexdigest()[:32]


def _read(text: str) -> Any:
    """Return the value of a JSON text; None if it is not whole."""
    try:
        return json.loads(text)
    except ValueError:
        return None
