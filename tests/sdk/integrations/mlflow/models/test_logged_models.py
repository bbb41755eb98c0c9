"""Models, datasets and outputs of a tracking store: what its calls leave in the journal, and what they read of it."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from chiplog_schemas.model.events import EventKind

Offline = Callable[..., list[Any]]


@pytest.fixture
def store(chiplog_dir: Path) -> Any:
    return import_module("chiplog.integrations.mlflow.plugin").tracking_store(f"chiplog://{chiplog_dir}")


def _entity(kind: str, *given: Any, **named: Any) -> Any:
    return getattr(import_module("mlflow.entities"), kind)(*given, **named)


def _start(store: Any) -> str:
    return str(store.create_run("0", "me", 1_000, [], "calm-fox-1").info.run_id)


def test_a_model_is_read_from_memory_as_it_was_changed_last(store: Any, offline: Offline) -> None:
    run_id = _start(store)
    created = store.create_logged_model(
        "0", "cnn", run_id, [_entity("RunTag", "a", "1")], [_entity("Param", "lr", "2")]
    )
    assert created.artifact_location.endswith(f"/{run_id}/models/{created.model_id}/artifacts")
    store.set_logged_model_tags(created.model_id, [_entity("RunTag", "a", "2"), _entity("RunTag", "b", "3")])
    store.delete_logged_model_tag(created.model_id, "b")
    store.log_logged_model_params(created.model_id, [_entity("Param", "depth", 4)])
    store.log_metric(run_id, _entity("Metric", "loss", 0.5, 2_000, 0, model_id=created.model_id))
    store.finalize_logged_model(created.model_id, "READY")
    found = store.get_logged_model(created.model_id)
    assert (found.name, str(found.status), found.source_run_id) == ("cnn", "READY", run_id)
    assert (found.tags, found.params) == ({"a": "2"}, {"lr": "2", "depth": "4"})
    [metric] = found.metrics
    assert (metric.key, metric.value, metric.timestamp, metric.model_id) == ("loss", 0.5, 2_000, created.model_id)
    keys = [event.fields["key"] for event in offline(EventKind.TAG)]
    assert f"chiplog:model/{created.model_id}/status" in keys
    assert not any(key.startswith("chiplog:") for key in store.get_run(run_id).data.tags)


def test_a_deleted_model_is_unknown_but_to_those_who_want_it(store: Any) -> None:
    exceptions = import_module("mlflow.exceptions")
    model_id = store.create_logged_model("0", None, _start(store)).model_id
    store.delete_logged_model(model_id)
    assert store.get_logged_model(model_id, allow_deleted=True).model_id == model_id
    with pytest.raises(exceptions.MlflowException, match=f"Logged model with ID '{model_id}' not found"):
        store.get_logged_model(model_id)


def test_a_dataset_is_an_input_once_and_a_model_an_output_once(store: Any) -> None:
    run_id = _start(store)
    fields = {"name": "train", "digest": "1", "source_type": "local", "source": "{}", "schema": None, "profile": None}
    for context in ("training", "again"):
        dataset = _entity("Dataset", **fields)
        dataset.to_dictionary = lambda: fields
        store.log_inputs(run_id, [_entity("DatasetInput", dataset, [_entity("InputTag", "context", context)])])
    store.log_inputs(run_id, models=[_entity("LoggedModelInput", "m-9")])
    for step in (3, 7):
        store.log_outputs(run_id, [_entity("LoggedModelOutput", "m-1", step)])
    run = store.get_run(run_id)
    [given] = run.inputs.dataset_inputs
    assert (given.dataset.name, [(tag.key, tag.value) for tag in given.tags]) == ("train", [("context", "training")])
    assert [model.model_id for model in run.inputs.model_inputs] == ["m-9"]
    assert [(model.model_id, model.step) for model in run.outputs.model_outputs] == [("m-1", 3)]


def test_models_without_a_run_are_kept_by_a_run_of_their_experiment(store: Any) -> None:
    first, second = (store.create_logged_model("0", name).model_id for name in ("a", "b"))
    [record] = store._runs.list_all()
    assert record.run_id == "mlflow-models-0"
    assert {store.get_logged_model(model_id).name for model_id in (first, second)} == {"a", "b"}
