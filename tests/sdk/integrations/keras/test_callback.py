"""The callback for Keras, on a stand-in for Keras; tests/integrations has the real one."""

import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chiplog.recording.run import current_run
from chiplog.recording.run.run import Run
from chiplog.recording.run.run_notices import RunNotices

MODULE = "chiplog.integrations.keras.callback"


class Callback:
    """As Keras's base class."""

    model: Any = None
    params: Any = None

    def set_model(self, model: Any) -> None:
        self.model = model


class Model:
    """As a model of Keras."""

    def __init__(self) -> None:
        self.optimizer = SimpleNamespace(learning_rate=0.5, iterations=0, get_config=lambda: {"name": "sgd"})

    def save(self, filepath: str) -> None:
        Path(filepath).write_text("saved")

    save_weights = save

    def count_params(self) -> int:
        raise ValueError("not built")


@pytest.fixture
def module(no_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    backend = SimpleNamespace(backend=lambda: "torch")
    stand_in = SimpleNamespace(callbacks=SimpleNamespace(Callback=Callback), backend=backend)
    monkeypatch.setitem(sys.modules, "keras", stand_in)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    yield import_module(MODULE)
    for name in (MODULE, "chiplog.integrations.keras"):
        sys.modules.pop(name, None)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    rows: list[Any] = []
    monkeypatch.setattr(Run, "log", lambda self, row, step=None: rows.append((step, row)))
    return rows


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    rows: list[Any] = []
    monkeypatch.setattr(RunNotices, "emit", lambda self, *fields: rows.append(fields))
    return rows


def fit(callbacks: list[Any], model: Model, *, n_epochs: int = 1) -> None:
    """Call hooks as Keras does, for two batches an epoch."""
    for callback in callbacks:
        callback.set_model(model)
    for callback in callbacks:
        callback.on_train_begin()
    for epoch in range(n_epochs):
        for callback in callbacks:
            callback.on_epoch_begin(epoch)
        for batch in range(2):
            for callback in callbacks:
                callback.on_train_batch_begin(batch)
            model.optimizer.iterations += 1
            for callback in callbacks:
                callback.on_train_batch_end(batch, {"loss": 1.0})
        for callback in callbacks:
            callback.on_test_begin()
            callback.on_test_end({"loss": 2.0})
            callback.on_epoch_end(epoch, {"loss": 1.0, "val_loss": 2.0})
    for callback in callbacks:
        callback.on_train_end()


BATCH = {"batch/loss": 1.0, "batch/learning_rate": 0.5}
EPOCH = {"epoch/loss": 1.0, "epoch/val_loss": 2.0, "epoch/learning_rate": 0.5}


def test_batches_and_epochs_are_rows_and_a_second_fit_continues(module: Any, logged: list[Any]) -> None:
    report, model = module.ChiplogCallback(project="p"), Model()
    fit([report], model)
    fit([report], model)
    first = [(0, BATCH), (1, BATCH), (1, {"epoch": 0, **EPOCH})]
    assert logged == [*first, (2, BATCH), (3, BATCH), (3, {"epoch": 0, **EPOCH})]
    run = current_run.current()
    assert run is not None
    assert run.project == "p"
    assert run.config["keras"] == {"backend": "torch", "optimizer": {"name": "sgd"}}


def test_a_model_that_was_trained_before_continues_its_steps(module: Any, logged: list[Any]) -> None:
    model = Model()
    model.optimizer.iterations = 7
    fit([module.ChiplogCallback()], model)
    assert [step for step, _ in logged] == [7, 8, 8]


def test_a_callback_that_is_twice_in_the_list_records_once(module: Any, logged: list[Any]) -> None:
    report = module.ChiplogCallback()
    fit([report, report], Model())
    assert len(logged) == 3


def test_of_two_callbacks_the_first_records(module: Any, logged: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        fit([module.ChiplogCallback(), module.ChiplogCallback()], Model())
    assert len([row for _, row in logged if "batch/loss" in row]) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "chiplog: the model has several ChiplogCallbacks; the first one records"
    ]


def test_an_evaluation_alone_is_a_row(module: Any, logged: list[Any]) -> None:
    report = module.ChiplogCallback()
    report.set_model(Model())
    report.on_test_begin()
    report.on_test_end({"loss": 2.0})
    assert logged == [(None, {"eval/loss": 2.0})]


def test_a_saved_model_is_an_event_and_the_model_is_as_before(
    module: Any, logged: list[Any], notices: list[Any], tmp_path: Path
) -> None:
    report, model = module.ChiplogCallback(), Model()
    report.set_model(model)
    report.on_train_begin()
    path = str(tmp_path / "m.keras")
    model.save(path)
    report.on_train_end()
    assert notices == [("checkpoint", path, {"step": None}, "info")]
    assert "save" not in vars(model)
    assert Path(path).read_text() == "saved"


def test_a_fit_after_one_that_raised_records(module: Any, logged: list[Any]) -> None:
    model = Model()
    stopped = module.ChiplogCallback()
    stopped.set_model(model)
    stopped.on_train_begin()
    fit([module.ChiplogCallback()], model)
    assert len(logged) == 3


def test_a_schedule_is_computed_once_an_epoch_of_two_batches(module: Any, logged: list[Any]) -> None:
    report, model = module.ChiplogCallback(), Model()
    fit([report], model)
    model.optimizer.learning_rate = lambda step: step / 4
    fit([report], model)
    rates = [(key, value) for _, row in logged[3:] for key, value in row.items() if key.endswith("/learning_rate")]
    assert rates == [("batch/learning_rate", 0.75), ("epoch/learning_rate", 1.0)]


def test_an_optimizer_without_a_learning_rate_costs_no_other_value(
    module: Any, logged: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    model.optimizer.learning_rate = object()
    with caplog.at_level(logging.WARNING):
        fit([module.ChiplogCallback()], model)
    assert logged[-1] == (1, {"epoch": 0, "epoch/loss": 1.0, "epoch/val_loss": 2.0})
    assert len(caplog.records) == 1


def test_of_several_callbacks_the_first_one_records_an_evaluation(module: Any, logged: list[Any]) -> None:
    report, other, model = module.ChiplogCallback(), module.ChiplogCallback(), Model()
    fit([report, report, other], model)
    for callbacks in ([report, report, other], [other, report]):
        for callback in callbacks:
            callback.set_model(model)
        for callback in callbacks:
            callback.on_test_begin()
        for callback in callbacks:
            callback.on_test_end({"loss": 2.0})
    assert [row for _, row in logged if "eval/loss" in row] == 2 * [{"eval/loss": 2.0}]


def test_a_fit_inside_of_a_fit_by_the_same_callback_is_one_line(
    module: Any, logged: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    report, model = module.ChiplogCallback(), Model()
    report.set_model(model)
    report.on_train_begin()
    fit([report], Model())
    for batch in range(3):
        report.on_train_batch_begin(batch)
        report.on_train_batch_end(batch, {"loss": 1.0})
    assert len(logged) == 3
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "chiplog: this ChiplogCallback was in a fit() inside of this one"
    ]
