"""The tracking store on MLflow's names: what its calls leave in the journal, and what they read of it."""

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from chiplog_schemas.model.events import EventKind
from tests.support.sdk_events import notices, numbers

Offline = Callable[..., list[Any]]


@pytest.fixture
def store(chiplog_dir: Path) -> Any:
    from chiplog.integrations.mlflow.plugin import tracking_store

    return tracking_store(f"chiplog://{chiplog_dir}")


def _entity(name: str, *given: Any, **named: Any) -> Any:
    return getattr(import_module("mlflow.entities"), name)(*given, **named)


def _start(store: Any, name: str | None = "calm-fox-1", **tags: str) -> str:
    run = store.create_run("0", "me", 1_000, [_entity("RunTag", key, value) for key, value in tags.items()], name)
    return str(run.info.run_id)


def test_metrics_keep_mlflows_time_and_step_and_are_read_right_away(store: Any, offline: Offline) -> None:
    run_id = _start(store)
    store.log_metric(run_id, _entity("Metric", "loss", 0.5, 1_700_000_000_123, 0))
    store.log_batch(run_id, [_entity("Metric", key, 1.0, 2_000, 3) for key in ("a", "b", "a")], [], [])
    assert numbers(offline()) == [("loss", 0, 0.5), ("a", 3, 1.0), ("b", 3, 1.0), ("a", 3, 1.0)]
    assert [event.ts for event in offline(EventKind.METRICS)] == [1_700_000_000_123_000, 2_000_000, 2_000_000]
    assert [point.value for point in store.get_metric_history(run_id, "a")] == [1.0, 1.0]
    assert store.get_run(run_id).data.metrics == {"loss": 0.5, "a": 1.0, "b": 1.0}


def test_a_metric_that_comes_again_for_a_model_is_a_link_and_a_new_one_is_both(store: Any, offline: Offline) -> None:
    run_id = _start(store)
    store.log_metric(run_id, _entity("Metric", "train_loss", 0.5, 1_000, 0))
    for value, time_ms in ((0.5, 1_000), (0.25, 2_000), (0.5, 1_001)):
        metric = _entity("Metric", "train_loss", value, time_ms, 0, model_id="m-1")
        store.log_batch(run_id, [metric], [], [])
    assert [value for _, _, value in numbers(offline())] == [0.5, 0.25, 0.5]


def test_logging_an_artifact_by_the_id_of_a_run_that_is_not_stored_yet_asks_no_collector(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._reads, "_stored", None)
    client: dict[str, Any] = {"__name__": "mlflow.tracking.client", "store": store}
    exec("def log_artifact(run_id):\n    return store.get_run(run_id)", client)
    assert client["log_artifact"]("another").info.artifact_uri.endswith("/another/artifacts")


def test_links_of_metrics_to_models_are_bounded_in_memory(
    store: Any, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chiplog.integrations.mlflow import records

    monkeypatch.setattr(records, "_LINKS_MAX", 3)
    run_id = _start(store)
    for step in range(5):
        store.log_metric(run_id, _entity("Metric", "loss", 0.5, 1_000, step, model_id="m-1"))
    links = [event.fields["key"] for event in offline(EventKind.TAG) if "metric/m-1/" in event.fields["key"]]
    record = store._runs.find(run_id)
    assert (len(links), list(record.links)) == (5, links[-3:])
    assert not record.tags.keys() & set(links)


def test_mlflows_own_calls_read_what_is_in_memory_when_the_oldest_values_have_left_it(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chiplog.integrations.mlflow import metrics

    monkeypatch.setattr(metrics, "POINTS_MAX", 4)
    run_id = _start(store)
    for step in range(5):
        store.log_metric(run_id, _entity("Metric", "loss", 0.5, 1_000 + step, step))
    monkeypatch.setattr(store._reads, "_stored", None)  # log_model would log again what only the database has
    assert [point.step for point in store.get_metric_history(run_id, "loss")] == [2, 3, 4]


def test_params_and_tags_are_tags_of_the_run_and_the_first_param_counts(
    store: Any, offline: Offline, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = _start(store, team="x")
    for value in ("0.1", "0.1", "0.2"):
        store.log_param(run_id, _entity("Param", "lr", value))
    store.set_tag(run_id, _entity("RunTag", "mlflow.note.content", "a note"))
    store.delete_tag(run_id, "team")
    tags = [(event.fields["key"], event.fields["value"]) for event in offline(EventKind.TAG)]
    assert [value for key, value in tags if key == "chiplog:param/lr"] == ["0.1"]
    assert ("team", "x") in tags and tags[-1] == ("team", None)
    assert notices(offline()) == [("param_changed", "lr")]
    assert "param 'lr' is '0.1' already; '0.2' is not recorded" in caplog.text
    run = store.get_run(run_id)
    assert (run.data.params, "team" in run.data.tags) == ({"lr": "0.1"}, False)
    assert store._runs.find(run_id).inner.notes == "a note"


def test_with_strict_mlflows_errors_are_raised(chiplog_dir: Path) -> None:
    from mlflow.exceptions import MlflowException

    from chiplog.integrations.mlflow.plugin import tracking_store

    store = tracking_store(f"chiplog://{chiplog_dir}?strict=1")
    run_id = _start(store)
    store.log_param(run_id, _entity("Param", "lr", "1"))
    with pytest.raises(MlflowException, match="Changing param values is not allowed"):
        store.log_param(run_id, _entity("Param", "lr", "2"))
    with pytest.raises(MlflowException, match="name"):
        store.log_metric(run_id, _entity("Metric", "a\nb", 1.0, 1, 0))
    store.delete_run(run_id)
    with pytest.raises(MlflowException, match="must be in the 'active' state"):
        store.log_metric(run_id, _entity("Metric", "a", 1.0, 1, 0))


def test_bad_values_are_lines_and_the_others_are_recorded(
    store: Any, offline: Offline, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = _start(store)
    metrics = [_entity("Metric", "a\nb", 1.0, 1, 0), _entity("Metric", "good", 2, 1, 0)]
    store.log_batch(run_id, metrics, [], [])
    assert numbers(offline()) == [("good", 0, 2.0)]
    lines = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1 and "\n" not in lines[0] and "mlflow.log_metric()" in lines[0]


def test_a_run_ends_with_its_status_and_a_late_tag_opens_it_again(store: Any, offline: Offline) -> None:
    run_id = _start(store)
    info = store.update_run_info(run_id, 5, 9_000, None)
    assert (info.status, info.end_time) == ("KILLED", 9_000)
    assert [event.fields["state"]["state"] for event in offline(EventKind.STATE)] == ["failed"]
    store.set_tag(run_id, _entity("RunTag", "late", "x"))
    assert store.get_run(run_id).data.tags["late"] == "x"
    assert store.get_run(run_id).info.status == "KILLED"


def test_experiments_are_projects_and_their_tags_stay_with_their_runs(store: Any, offline: Offline) -> None:
    from mlflow.exceptions import MlflowException

    made = store.create_experiment("mnist", tags=[_entity("ExperimentTag", "team", "x")])
    with pytest.raises(MlflowException, match="already exists"):
        store.create_experiment("mnist")
    run_id = store.create_run(made, "me", 1_000, [], "a").info.run_id
    store.set_experiment_tag(made, _entity("ExperimentTag", "stage", "late"))
    store.delete_experiment_tag(made, "team")
    found = [(event.fields["key"], event.fields["value"]) for event in offline(EventKind.TAG)]
    kept = [(key, value) for key, value in found if key.startswith("chiplog:experiment_tag/")]
    prefix = "chiplog:experiment_tag/"
    assert kept == [(f"{prefix}team", '"x"'), (f"{prefix}stage", '"late"'), (f"{prefix}team", "null")]
    assert store._runs.find(run_id).inner.project == "mnist"
    with pytest.raises(MlflowException, match="cannot be renamed"):
        store.rename_experiment(made, "other")


def test_what_is_not_the_id_of_a_run_is_a_line_and_no_run(
    store: Any, offline: Offline, caplog: pytest.LogCaptureFixture
) -> None:
    for run_id in ("x" * 10_000, "../../etc"):
        store.log_metric(run_id, _entity("Metric", "loss", 1.0, 1, 0))
    assert offline() == [] and store._runs.list_all() == []
    lines = [record.message for record in caplog.records]
    assert "over the limit of 128" in lines[0] and "has a slash" in lines[1] and max(map(len, lines)) < 300


def test_a_rank_beside_the_primary_sets_tags_but_neither_name_nor_user(
    store: Any, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chiplog.integrations.mlflow import launches

    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launches, "_initial_variables", lambda: {"RANK"})
    run_id = _start(store, team="x")
    assert [(event.fields["key"], event.fields["value"]) for event in offline(EventKind.TAG)] == [("team", "x")]
    assert (store._runs.find(run_id).inner.label, store.get_run(run_id).info.user_id) == ("rank1", "me")


@pytest.mark.parametrize("is_of_user", [True, False])
def test_a_rank_beside_the_primary_reads_its_values_under_its_label_and_no_end(
    store: Any, offline: Offline, monkeypatch: pytest.MonkeyPatch, is_of_user: bool
) -> None:
    from chiplog.integrations.mlflow import launches
    from chiplog.integrations.mlflow import store as module

    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launches, "_initial_variables", lambda: {"RANK"})
    run_id = _start(store, None)
    store.log_metric(run_id, _entity("Metric", "loss", 0.5, 1_000, 0))
    store.update_run_info(run_id, 3, 9_000, None)
    monkeypatch.setattr(module, "is_read_of_user", lambda: is_of_user)
    monkeypatch.setattr(store._stored, "find", lambda *given: None)  # rank 0 has not begun
    monkeypatch.setattr(store._stored, "history", lambda *given: (None, []))
    monkeypatch.setattr(store._stored, "list_all", lambda ids: [])
    key, other = ("rank1/loss", "loss") if is_of_user else ("loss", "rank1/loss")
    assert [point.value for point in store.get_metric_history(run_id, key)] == [0.5]
    assert store.get_metric_history(run_id, other) == []
    runs = [store.get_run(run_id), *(store._search_runs(["0"], None, 1, 10, None, None)[0] if is_of_user else ())]
    for run in runs:
        assert run.data.metrics == {key: 0.5}
        assert (run.info.status, run.info.end_time) == (("RUNNING", None) if is_of_user else ("FINISHED", 9_000))
        assert run.info.run_name == run.info.run_id  # no name until rank 0's is known
