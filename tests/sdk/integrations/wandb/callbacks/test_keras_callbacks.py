"""W&B's callbacks for Keras, on a stand-in for Keras; tests/integrations has the real one."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chiplog.integrations import wandb
from chiplog.recording.sharing.run_artifacts import RunArtifacts

MODULE = "chiplog.integrations.wandb.callbacks.keras_callbacks"


class Callback:
    """What Keras calls; its model has a file and a rate."""

    def __init__(self) -> None:
        weight = SimpleNamespace(path="dense/kernel", numpy=lambda: np.ones(3))
        optimizer = SimpleNamespace(learning_rate=np.float32(0.5))
        self.model = SimpleNamespace(optimizer=optimizer, weights=[weight], save=self._write)

    @staticmethod
    def _write(path: str) -> None:
        Path(path).write_text(path)


class ModelCheckpoint(Callback):
    def __init__(self, filepath: str, save_best_only: bool = False) -> None:
        super().__init__()
        self.filepath = filepath
        self.save_best_only = save_best_only

    def _get_file_path(self, epoch: int, batch: int | None, logs: Any) -> str:
        return self.filepath.format(epoch=epoch)

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        if not self.save_best_only or epoch != 1:
            self.model.save(self._get_file_path(epoch, batch, logs))


@pytest.fixture
def keras(chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    callbacks = SimpleNamespace(Callback=Callback, ModelCheckpoint=ModelCheckpoint)
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(callbacks=callbacks))
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setenv("CHIPLOG_MODE", "offline")
    yield wandb.integration.keras
    wandb.teardown()
    sys.modules.pop(MODULE, None)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    rows: list[Any] = []
    monkeypatch.setattr(wandb.Run, "log", lambda self, row, step=None, commit=None: rows.append((row, commit)))
    return rows


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    def keep(self: Any, artifact: Any, aliases: Any) -> None:
        found.append(([entry.path for entry in artifact.entries()], aliases))

    monkeypatch.setattr(RunArtifacts, "log", keep)
    return found


def test_epochs_are_rows_with_the_learning_rate(keras: Any, logged: list[Any]) -> None:
    wandb.init()
    keras.WandbMetricsLogger().on_epoch_end(3, {"loss": 1.5})
    assert logged == [({"epoch/loss": 1.5, "epoch/epoch": 3, "epoch/learning_rate": 0.5}, None)]


def test_of_batches_each_nth_is_a_row_and_a_schedule_gives_the_rate(keras: Any, logged: list[Any]) -> None:
    wandb.init()
    logger = keras.WandbMetricsLogger(log_freq=2, initial_global_step=10)
    logger.model.optimizer.learning_rate = lambda step: step / 100
    for batch in range(4):
        logger.on_train_batch_end(batch, {"loss": float(batch)})
    assert [row for row, _ in logged] == [
        {"batch/loss": 0.0, "batch/batch_step": 0, "batch/learning_rate": 0.11},
        {"batch/loss": 2.0, "batch/batch_step": 2, "batch/learning_rate": 0.13},
    ]


def test_without_a_run_or_a_rate_a_training_goes_on(keras: Any, capfd: pytest.CaptureFixture[str]) -> None:
    logger = keras.WandbMetricsLogger("batch")
    logger.model.optimizer = None
    logger.on_train_batch_end(0, None)
    keras.WandbCallback().on_epoch_end(0, {"val_loss": 1.0})
    assert "call wandb.init() first" in capfd.readouterr().err


@pytest.mark.parametrize(("best_only", "epochs"), [(False, [0, 1, 2]), (True, [0, 2])])
def test_each_file_of_a_checkpoint_is_a_version(
    keras: Any, models: list[Any], tmp_path: Path, best_only: bool, epochs: list[int]
) -> None:
    wandb.init()
    checkpoint = keras.WandbModelCheckpoint(f"{tmp_path}/{{epoch}}.keras", save_best_only=best_only, options=None)
    for epoch in range(3):
        checkpoint._save_model(epoch, None, {})
    best = ["best"] if best_only else []
    assert models == [([f"{epoch}.keras"], ["latest", f"epoch_{epoch}", *best]) for epoch in epochs]


def test_predictions_are_tables_beside_the_rows_of_the_epoch(keras: Any, logged: list[Any]) -> None:
    class Predictions(keras.WandbEvalCallback):  # type: ignore[misc,name-defined]
        def add_ground_truth(self, logs: Any = None) -> None:
            self.data_table.add_data(7)

        def add_model_predictions(self, epoch: int, logs: Any = None) -> None:
            for index in self.data_table_ref.get_index():
                self.pred_table.add_data(epoch, *self.data_table_ref.data[index])

    wandb.init()
    callback = Predictions(["x"], ["epoch", "x"])
    callback.on_train_begin()
    callback.on_epoch_end(2)
    assert [(key, table.data, commit) for row, commit in logged for key, table in row.items()] == [
        ("val_data", [[7]], False),
        ("eval_data", [[2, 7]], False),
    ]
    for name in ("add_ground_truth", "add_model_predictions"):
        with pytest.raises(NotImplementedError):
            getattr(keras.WandbEvalCallback([], []), name)(0)


def test_the_older_callback_keeps_the_best_model(keras: Any, logged: list[Any], models: list[Any]) -> None:
    run = wandb.init()
    callback = keras.WandbCallback(log_weights=True, log_batch_frequency=1)
    callback.on_train_batch_end(0, {"loss": 9.0})
    for epoch, loss in enumerate((2.0, 3.0)):
        callback.on_epoch_end(epoch, {"val_loss": loss})
    assert logged[0] == ({"loss": 9.0}, None)
    assert {"epoch", "val_loss", "parameters/dense/kernel"} == set(logged[1][0])
    assert dict(run.summary) == {"best_val_loss": 2.0, "best_epoch": 0}
    assert models == [(["model-best.keras"], ["latest", "best", "epoch_0"])]


def test_what_is_not_there_is_one_line(keras: Any, capfd: pytest.CaptureFixture[str]) -> None:
    wandb.init()
    callback = keras.WandbCallback(log_gradients=True, mode="max", log_best_prefix=None)
    callback.model.save = lambda path: 1 / 0
    callback.on_epoch_end(0, {"val_loss": 1.0})
    lines = capfd.readouterr().err
    assert "log_gradients" in lines and "cannot save the model" in lines
