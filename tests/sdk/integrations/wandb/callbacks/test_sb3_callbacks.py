"""W&B's callback for Stable-Baselines3, on a stand-in for its base class; tests/integrations has the real one."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chiplog.integrations import wandb

MODULE = "chiplog.integrations.wandb.callbacks.sb3_callbacks"


class BaseCallback:
    """What the library calls."""

    n_calls = 0

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose

    def run(self, model: Any, n_steps: int) -> None:
        self.model = model
        self._init_callback()  # type: ignore[attr-defined]
        for self.n_calls in range(1, n_steps + 1):
            assert self._on_step() is True  # type: ignore[attr-defined]
        self._on_training_end()  # type: ignore[attr-defined]


class Ppo:
    def __init__(self) -> None:
        self.n_steps, self.gamma, self.device, self.policy = 32, 0.5, "cpu", ["policy"]
        self.saved: list[str] = []

    def save(self, path: str) -> None:
        self.saved.append(path)
        Path(path).write_text("model")


@pytest.fixture
def sb3(chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("stable_baselines3", "stable_baselines3.common"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    callbacks = SimpleNamespace(BaseCallback=BaseCallback)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.callbacks", callbacks)
    monkeypatch.setenv("CHIPLOG_MODE", "offline")
    yield wandb.integration.sb3
    wandb.teardown()
    sys.modules.pop(MODULE, None)


def test_hyperparameters_are_config_and_the_model_is_saved(sb3: Any, tmp_path: Path) -> None:
    run = wandb.init(config={"gamma": "own"})
    saved: list[Any] = []
    watched: list[Any] = []
    run.save = lambda path, base_path: saved.append((path, base_path))
    run.watch = lambda model, **given: watched.append((model, given))
    model, folder = Ppo(), str(tmp_path / "models")
    sb3.WandbCallback(1, folder, model_save_freq=2, gradient_save_freq=5, log="parameters").run(model, 4)
    found = {"algo": "Ppo", "gamma": "own", "n_steps": 32, "device": "cpu", "policy": "['policy']", "saved": "[]"}
    assert dict(run.config) == found
    assert watched == [(["policy"], {"log": "parameters", "log_freq": 5})]
    assert model.saved == [f"{folder}/model.zip"] * 3 and saved == [(f"{folder}/model.zip", folder)] * 3


def test_wrong_arguments_and_a_missing_run_are_lines(sb3: Any, capfd: pytest.CaptureFixture[str]) -> None:
    callback = sb3.WandbCallback(model_save_freq=1, log="weights")
    callback.run(Ppo(), 2)
    said = capfd.readouterr().err
    for part in ("call wandb.init() first", "saves nothing without model_save_path=", "log='weights'"):
        assert part in said
    assert callback.log == "all"


def test_a_model_that_cannot_be_saved_does_not_end_the_training(
    sb3: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    wandb.init()
    sb3.WandbCallback(model_save_path=str(tmp_path / "file" / "models")).run(Ppo(), 1)
    assert "failed in save_model; it continues: NotADirectoryError" in capfd.readouterr().err
