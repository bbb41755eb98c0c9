"""W&B's callbacks for XGBoost, on a stand-in for its base class; tests/integrations has the real one."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chiplog.integrations import wandb

MODULE = "chiplog.integrations.wandb.callbacks.xgboost_callbacks"
ROWS: Any = {"test": {"logloss": [0.5, 0.25], "auc": [0.5], "other": [1.0]}}


class Booster:
    def __init__(self, **attributes: str) -> None:
        self.attr = attributes.get
        self.get_score = lambda importance_type: {"f0": 2.0} if importance_type == "gain" else {}[importance_type]

    def save_config(self) -> str:
        return json.dumps({"version": [3, 2, 0]})

    def save_model(self, path: str) -> None:
        Path(path).write_text("trees")


@pytest.fixture
def xgboost(chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "xgboost", SimpleNamespace())
    callback = SimpleNamespace(TrainingCallback=type("TrainingCallback", (), {}))
    monkeypatch.setitem(sys.modules, "xgboost.callback", callback)
    monkeypatch.setenv("CHIPLOG_MODE", "offline")
    yield wandb.integration.xgboost
    wandb.teardown()
    sys.modules.pop(MODULE, None)


def test_iterations_are_rows_and_the_end_has_importances_model_and_best_score(
    xgboost: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = wandb.init()
    rows: list[Any] = []
    models: list[Any] = []
    defined: list[Any] = []
    run.log = rows.append
    run.log_artifact = lambda artifact, aliases: models.append((artifact.name, [e.path for e in artifact.entries()]))
    run.define_metric = lambda name, summary: defined.append((name, summary))
    model = Booster(best_score="0.25", best_iteration="1")
    callback = xgboost.WandbCallback(log_model=True)
    assert callback.before_training(model) is model
    assert callback.after_iteration(model, 0, ROWS) is callback.after_iteration(model, 1, ROWS) is False
    assert callback.after_training(model) is model
    assert run.config["version"] == [3, 2, 0]
    assert defined == [("test-logloss", "min"), ("test-auc", "max")]
    assert rows[0] == {"test-logloss": 0.25, "test-auc": 0.5, "test-other": 1.0, "epoch": 0}
    assert list(rows[2]) == ["Feature Importance"] and rows[3:] == [{"best_score": 0.25, "best_iteration": 1}]
    assert models == [(f"{run.id}_model.json", [f"{run.id}_model.json"])]


def test_a_training_continues_without_a_run_and_with_a_model_of_another_kind(
    xgboost: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    callback, model = xgboost.WandbCallback(log_model=True), Booster()
    assert callback.before_training(model) is callback.after_training(model) is model
    assert callback.after_iteration(model, 0, ROWS) is False
    xgboost.wandb_callback()(SimpleNamespace(evaluation_result_list=[]))
    [line] = capfd.readouterr().err.splitlines()
    assert "call wandb.init() first" in line
    wandb.init()
    callback = wandb.xgboost.WandbCallback(importance_type="no such type", log_feature_importance=True)
    packed = SimpleNamespace(attr=lambda name: None)  # of xgboost.cv()
    assert callback.before_training(packed) is callback.after_training(packed) is packed
    said = capfd.readouterr().err
    assert "failed in before_training" in said and "failed in log_feature_importance" in said


def test_the_older_callback_logs_the_results_of_an_iteration(xgboost: Any) -> None:
    run = wandb.init()
    xgboost.wandb_callback()(SimpleNamespace(evaluation_result_list=[("test-rmse", 0.5), ("train-rmse", 0.25)]))
    assert dict(run.summary) == {"test-rmse": 0.5, "train-rmse": 0.25}
