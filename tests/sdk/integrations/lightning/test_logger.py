"""Lightning's logger on a stand-in for Lightning; tests/integrations has the real one."""

import argparse
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from chiplog_schemas.model.events import EventKind
from tests.support.journals import read_events
from tests.support.sdk_events import numbers

Import = Callable[[str], ModuleType]


@pytest.fixture
def new(lightning: Import) -> Callable[..., Any]:
    logger: Callable[..., Any] = lightning("logger").ChiplogLogger
    return logger


def test_it_logs_at_lightnings_step_into_the_run_that_its_arguments_open(
    new: Callable[..., Any], chiplog_dir: Path
) -> None:
    logger = new(project="p", name="tiny", save_dir=Path("here"))
    logger.log_metrics({"loss": 0.5, "epoch": 0}, step=7)
    logger.log_graph(None)
    run = logger.experiment
    assert (logger.name, logger.version, logger.save_dir, run.name) == ("p", run.id, "here", "tiny")
    run.finish()
    assert numbers(read_events(chiplog_dir / "offline")) == [("loss", 7, 0.5), ("epoch", 7, 0.0)]


def test_without_a_project_its_name_is_that_of_lightnings_loggers(new: Callable[..., Any]) -> None:
    assert (new().name, new().save_dir) == ("lightning_logs", None)


@pytest.mark.parametrize(
    "params",
    [
        {"lr": 0.1, "net": {"width": 4}},
        argparse.Namespace(lr=0.1, net={"width": 4}),
        OmegaConf.create({"lr": 0.1, "net": {"width": 4}}),
    ],
)
def test_hyperparameters_are_config(new: Callable[..., Any], params: Any) -> None:
    logger = new()
    logger.log_hyperparams(params, "metrics", more=1)
    config = logger.experiment.config
    assert (config["lr"], dict(config["net"])) == (0.1, {"width": 4})


def test_values_that_cannot_be_logged_end_no_training(new: Callable[..., Any], chiplog_dir: Path) -> None:
    logger = new()
    values = {"tensor": torch.tensor(1.5), "nested": {"a": 2}, "none": None, "word": "x", "nan": float("nan")}
    logger.log_metrics(values, step=0)
    logger.log_metrics(None)
    logger.log_hyperparams(3)
    logger.after_save_checkpoint(None)
    logger.experiment.finish()
    found = {key: value for key, _, value in numbers(read_events(chiplog_dir / "offline"))}
    assert (found.pop("nan") != found.get("nan"), found) == (True, {"tensor": 1.5, "nested/a": 2.0})


def test_what_a_trainer_gives_to_several_loggers_is_logged_once(
    new: Callable[..., Any], chiplog_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = new(), new()
    for step, metrics in enumerate(({"loss": float("nan")}, {"loss": 0.5}, {"loss": torch.tensor(1.5)})):
        for logger in (first, first, second):
            logger.log_metrics(metrics, step=step)
    metrics = {"loss": 0.5}
    first.log_metrics(metrics, step=3)
    metrics["loss"] = 0.25
    second.log_metrics(metrics, step=3)
    first.log_metrics({"loss": 0.25}, step=3)
    for logger in (first, second, first):
        logger.log_metrics(metrics)
    first.experiment.finish()
    steps = [step for _, step, _ in numbers(read_events(chiplog_dir / "offline"))]
    assert steps == [0, 1, 2, 2, 2, 3, 3, 3, 4, 5], "a tensor is not kept, so that it is logged again"
    assert [message.partition(",")[0] for message in caplog.messages if "Loggers" in message] == [
        "chiplog: the trainer has several ChiplogLoggers"
    ]


def test_a_pickle_opens_the_run_again(new: Callable[..., Any]) -> None:
    logger = new(project="p", log_model=True)
    logger.experiment.finish()
    again = pickle.loads(pickle.dumps(logger))
    assert (again.name, again.experiment._finished, again._log_model) == ("p", False, True)


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """The callback of checkpoints after its first one."""
    path = tmp_path / "a.ckpt"
    path.write_text("a")
    named = {"last_model_path": "", "best_model_path": str(path), "best_k_models": {str(path): 0.5}}
    return SimpleNamespace(save_top_k=1, **named)


def _logged(logger: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    logged: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        type(logger.experiment), "log_model", lambda run, path, name, aliases: logged.append((Path(path).name, aliases))
    )
    return logged


def test_all_checkpoints_are_versions_when_they_are_saved(
    new: Callable[..., Any], saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = new(log_model="all")
    logged = _logged(logger, monkeypatch)
    logger.after_save_checkpoint(saved)
    logger.after_save_checkpoint(saved)
    assert logged == [("a.ckpt", ["latest", "best"])]
    (tmp_path / "b.ckpt").write_text("b")
    (tmp_path / "last.ckpt").symlink_to(tmp_path / "b.ckpt")
    saved.best_k_models[str(tmp_path / "b.ckpt")] = 0.6
    saved.last_model_path = str(tmp_path / "last.ckpt")
    logger.after_save_checkpoint(saved)
    logger.finalize("success")
    assert logged[1:] == [("b.ckpt", ["latest"])]


def test_the_checkpoints_that_are_left_are_versions_at_the_end_of_a_training_that_succeeds(
    new: Callable[..., Any], saved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = new(log_model=True)
    logged = _logged(logger, monkeypatch)
    logger.after_save_checkpoint(saved)
    logger.finalize("failed")
    assert logged == []
    logger.finalize("success")
    logger.finalize("success")
    assert logged == [("a.ckpt", ["latest", "best"])]


def test_no_checkpoint_is_a_version_without_log_model(new: Callable[..., Any], saved: Any, chiplog_dir: Path) -> None:
    logger = new()
    logger.after_save_checkpoint(saved)
    logger.finalize("success")
    logger.experiment.finish()
    assert not [event for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.ARTIFACT]
