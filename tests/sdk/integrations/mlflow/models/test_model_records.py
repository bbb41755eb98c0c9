"""Models, datasets and outputs as tags of runs."""

import json
import math
import random
from typing import Any

from chiplog.integrations.mlflow.models import model_records as records
from chiplog.integrations.mlflow.models.model_records import ModelMetric, ModelRecord


def tags_of(*pairs: Any) -> dict[str, str]:
    """Return what the view has after these tags were set in this order."""
    found: dict[str, str] = {}
    for key, value in (pair for some in pairs for pair in some):
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return found


def model(**more: Any) -> ModelRecord:
    return ModelRecord("m-1", "r", "7", "cnn", "agent", "r", 1_000, 1_000, **more)


def test_a_model_is_what_was_created_and_what_was_changed_since() -> None:
    created = model(tags={"stage": "dev", "owner/team": "é"}, params={"lr": "0.1"})
    changes = (
        records.named("m-1", "tag", {"stage": "prod", "owner/team": None, "k" * 900: "long"}),
        records.named("m-1", "param", {"epochs": "3"}),
        records.with_status("m-1", "READY", "done", 5_000),
    )
    tags = tags_of(records.created(created), *changes)
    assert all(len(key.encode()) <= 512 for key in tags)
    found = model(tags={"stage": "prod", "k" * 900: "long"}, params={"lr": "0.1", "epochs": "3"})
    found.status, found.status_message, found.updated_ms = "READY", "done", 5_000
    assert records.models_of("r", tags) == [found]
    [deleted] = records.models_of("r", tags_of(tags.items(), records.deleted("m-1", 9_000)))
    assert (deleted.is_deleted, deleted.updated_ms) == (True, 9_000)


def test_the_order_in_which_tags_are_read_changes_nothing() -> None:
    tags = list(tags_of(records.created(model(tags={"a": "1"})), records.with_status("m-1", "FAILED", None, 2)).items())
    expected = records.models_of("r", dict(tags))
    for seed in range(20):
        random.Random(seed).shuffle(tags)
        assert records.models_of("r", dict(tags)) == expected, seed


def test_a_model_of_which_only_changes_have_arrived_is_left_out() -> None:
    assert records.models_of("r", tags_of(records.with_status("m-1", "READY", None, 1))) == []
    assert records.models_of("r", {"chiplog:model/m-1": "not JSON", "mlflow.user": "me"}) == []


def test_a_metric_of_a_model_keeps_every_value_and_is_one_per_step_and_time() -> None:
    values = [
        ModelMetric("loss", value, step, 5, "d", "1", "r") for step, value in enumerate((0.1, math.inf, math.nan))
    ]
    tags = tags_of(*(records.linked("m-1", value) for value in (*values, values[0])))
    found = sorted(records.metrics_of("r", tags)["m-1"], key=lambda metric: metric.step)
    assert [repr(value) for value in found] == [repr(value) for value in values]
    assert all("NaN" not in text for text in tags.values())  # which JSON lacks


def test_a_dataset_of_any_size_comes_back_with_its_tags() -> None:
    large = {
        "name": "train",
        "digest": "1",
        "source_type": "local",
        "source": "{}",
        "schema": "é" * 90_000,
        "profile": None,
    }
    tags = tags_of(records.dataset_input(large, {"mlflow.data.context": "training"}))
    assert len(tags) > 1 and all(len(value) <= 65_536 for value in tags.values())
    assert records.dataset_inputs_of(tags) == [{"dataset": large, "tags": {"mlflow.data.context": "training"}}]
    tags.popitem()  # its last part is on its way
    assert records.dataset_inputs_of(tags) == []


def test_inputs_and_outputs_of_a_run_are_models_with_their_steps() -> None:
    outputs = (records.model_output("m-2", 3), records.model_output("m-1", 0))
    tags = tags_of(records.model_input("m-9"), *outputs, [("mlflow.user", json.dumps("me"))])
    assert records.model_inputs_of(tags) == ["m-9"]
    assert records.model_outputs_of(tags) == [("m-1", 0), ("m-2", 3)]
