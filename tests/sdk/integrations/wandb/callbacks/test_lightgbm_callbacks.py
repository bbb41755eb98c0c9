"""W&B's callback for LightGBM, on a stand-in for its Booster; tests/integrations has the real one."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chiplog.integrations import wandb

MODULE = "chiplog.integrations.wandb.callbacks.lightgbm_callbacks"


class Booster:
    best_iteration = 7
    best_score = {"valid_0": {"l2": 0.5}}  # noqa: RUF012  # as LightGBM has it

    def feature_name(self) -> list[str]:
        return ["f0", "f1"]

    def feature_importance(self) -> Any:
        return np.array([3, 0])

    def save_model(self, path: str, num_iteration: int) -> None:
        Path(path).write_text(f"{num_iteration} trees")


@pytest.fixture
def lightgbm(chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "lightgbm", SimpleNamespace(Booster=Booster))
    monkeypatch.setenv("CHIPLOG_MODE", "offline")
    yield wandb.integration.lightgbm
    wandb.teardown()
    sys.modules.pop(MODULE, None)


def env_of(iteration: int, *results: Any) -> Any:
    return SimpleNamespace(
        iteration=iteration, begin_iteration=0, params={"verbose": -1}, evaluation_result_list=results
    )


def test_iterations_are_rows_and_the_summary_has_the_best_value(lightgbm: Any) -> None:
    run = wandb.init()
    callback = lightgbm.wandb_callback()
    assert (callback.order, callback.before_iteration) == (20, False)
    for iteration, value in enumerate((0.5, 0.25, 0.75)):
        callback(env_of(iteration, ("valid_0", "l2", value, False), ("valid_0", "auc", value, True)))
    assert dict(run.config) == {"verbose": -1}
    assert dict(run.summary) == {"valid_0_l2": {"min": 0.25}, "valid_0_auc": {"max": 0.75}, "iteration": 2}
    assert run.step == 3


@pytest.mark.parametrize(
    "result", [("valid", "l2", 0.5, False, 0.125), ("cv_agg", "valid l2", 0.5, False, 0.125)], ids=["4.7", "before"]
)
def test_of_folds_the_mean_and_the_deviation_are_logged(lightgbm: Any, result: Any) -> None:
    run = wandb.init()
    wandb.lightgbm.wandb_callback(log_params=False, define_metric=False)(env_of(0, result))
    assert dict(run.summary) == {"valid_l2-mean": 0.5, "valid_l2-stdv": 0.125, "iteration": 0}
    assert dict(run.config) == {}


def test_the_summary_of_a_model_has_its_best_score_importances_and_file(lightgbm: Any) -> None:
    run = wandb.init()
    rows: list[Any] = []
    models: list[Any] = []
    run.log = lambda row, commit: rows.append((list(row), row["Feature Importance"].table.data, commit))
    run.log_artifact = lambda artifact, aliases: models.append(
        (artifact.name, [entry.path for entry in artifact.entries()], aliases)
    )
    lightgbm.log_summary(Booster(), save_model_checkpoint=True)
    assert dict(run.summary) == {"best_iteration": 7, "best_score": {"valid_0": {"l2": 0.5}}}
    assert rows == [(["Feature Importance"], [["f0", 3], ["f1", 0]], False)]
    assert models == [(f"model_{run.id}", ["model_ckpt_7.txt"], ["best"])]


def test_a_missing_run_a_foreign_model_and_odd_results_are_lines(
    lightgbm: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    lightgbm.wandb_callback()(env_of(0))
    lightgbm.log_summary(Booster())
    wandb.init()
    lightgbm.log_summary(SimpleNamespace())
    lightgbm.wandb_callback()(env_of(0, (1, 2)))
    said = capfd.readouterr().err.splitlines()
    assert [any(part in line for line in said) for part in ("init() first", "not a SimpleNamespace", "TypeError")] == [
        True
    ] * 3
    assert len(said) == 3
