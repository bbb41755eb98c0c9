"""Lightning's callback on a stand-in for its trainer; tests/integrations has the real one."""

import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import chiplog
from chiplog_schemas.model.events import EventKind
from tests.support.finished_rows import finished_rows
from tests.support.journals import read_events
from tests.support.lightning_trainer import EpochLoop, Trainer
from tests.support.sdk_events import phases

Import = Callable[[str], ModuleType]
BATCH = {"x": (torch.zeros(3, 2), None)}


@pytest.fixture
def new(lightning: Import) -> Callable[..., Any]:
    callback: Callable[..., Any] = lightning("callback").ChiplogCallback
    return callback


def test_each_optimizer_step_is_a_row_with_the_phases_of_its_batches(
    new: Callable[..., Any], chiplog_dir: Path
) -> None:
    trainer = Trainer(new(project="p"), accumulate=2)
    trainer.fit([BATCH] * 4, torch.tensor(0.25))
    assert finished_rows(chiplog_dir) == [
        *[("rank/loss", 0, 0.5), ("rank/samples_per_s", 0, 1.0)],
        *[("rank/loss", 1, 0.5), ("rank/samples_per_s", 1, 1.0)],
    ]
    of_steps = [(step, set(named) - {"step", "gc"}) for step, named in phases(read_events(chiplog_dir / "offline"))]
    train = {"data", "forward", "backward", "optimizer"}
    assert of_steps == [(0, train), (1, train), (2, {"eval", "checkpoint"})]


def test_a_checkpoint_is_an_event_and_the_trainer_has_its_methods_again(
    new: Callable[..., Any], chiplog_dir: Path
) -> None:
    trainer = Trainer(new())
    trainer.fit([BATCH])
    assert trainer.saved == ["last.ckpt"] and "save_checkpoint" not in vars(trainer)
    assert "_on_before_fetch" not in vars(trainer.fit_loop.epoch_loop)
    finished_rows(chiplog_dir)
    found = [event.fields for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.NOTICE]
    [checkpoint] = [row for row in found if row["notice"] == "checkpoint"]
    assert (checkpoint["level"], checkpoint["message"], checkpoint["body"]) == ("info", "last.ckpt", {"step": 1})


def test_of_several_callbacks_the_first_one_records(
    new: Callable[..., Any], chiplog_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = new()
    Trainer(callback, callback, new()).fit([BATCH, BATCH])
    assert caplog.messages == ["chiplog: the trainer has several ChiplogCallbacks; the first one records"]
    Trainer(callback).fit([BATCH])
    assert [(step, value) for key, step, value in finished_rows(chiplog_dir) if key == "rank/loss"] == [
        (0, 1),
        (1, 1),
        (0, 1),
    ]


def test_a_batch_without_a_size_and_a_step_without_a_loss_leave_these_out(
    new: Callable[..., Any], chiplog_dir: Path
) -> None:
    trainer = Trainer(new())
    trainer.fit([["text"]], torch.tensor(1.0))
    trainer.fit([BATCH], None)
    assert [key for key, _, _ in finished_rows(chiplog_dir)] == ["rank/loss", "rank/samples_per_s"]


def test_a_version_of_lightning_without_a_method_is_one_line(
    new: Callable[..., Any], chiplog_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(EpochLoop, "_on_before_fetch")
    trainer = Trainer(new())
    trainer.call("setup", stage="fit")
    assert caplog.messages == ["chiplog: EpochLoop has no _on_before_fetch() in this version; its phase is left out"]
    trainer.call("on_train_batch_start", BATCH, 0)
    trainer.call("on_before_optimizer_step", None)
    trainer.call("on_train_batch_end", None, BATCH, 0)
    assert [key for key, _, _ in finished_rows(chiplog_dir)] == ["rank/samples_per_s"]


def test_what_fails_in_a_hook_ends_no_training(new: Callable[..., Any], chiplog_dir: Path) -> None:
    callback = new()
    trainer = Trainer(callback)
    trainer.call("setup", stage="fit")
    trainer.call("on_train_batch_start", BATCH, 0)
    trainer.call("on_before_optimizer_step", None)
    del trainer.fit_loop
    trainer.call("on_train_batch_end", None, BATCH, 0)
    trainer.save_checkpoint("x.ckpt")
    assert trainer.saved == ["x.ckpt"]


def test_ctrl_c_is_the_cause_of_the_end_and_an_exception_that_a_script_may_catch_is_not(
    new: Callable[..., Any], chiplog_dir: Path
) -> None:
    run = chiplog.init()
    trainer = Trainer(new())
    trainer.call("setup", stage="fit")
    trainer.call("on_exception", ValueError("bad batch"))
    assert not run._end.status.is_failed and "save_checkpoint" not in vars(trainer)
    trainer.call("on_exception", KeyboardInterrupt())
    assert run._end.status.is_failed


def test_a_trainer_inside_of_another_ends_neither_recording(new: Callable[..., Any], chiplog_dir: Path) -> None:
    callback = new()
    outer, inner = Trainer(callback), Trainer(callback)
    outer.call("setup", stage="fit")
    outer.call("on_train_batch_start", BATCH, 0)
    outer.call("on_before_optimizer_step", None)
    inner.fit([BATCH], torch.tensor(0.25))
    outer.call("on_train_batch_end", torch.tensor(0.5), BATCH, 0)
    outer.call("teardown", stage="fit")
    assert not {"save_checkpoint"} & (vars(outer).keys() | vars(inner).keys())
    assert [value for key, _, value in finished_rows(chiplog_dir) if key == "rank/loss"] == [0.25, 0.5]


def test_a_version_of_lightning_with_another_loop_and_more_arguments_loses_no_row(
    new: Callable[..., Any], chiplog_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(new())
    del trainer.fit_loop
    trainer.call("setup", stage="fit")
    for hook, given in (("start", ()), ("end", (torch.tensor(0.5),))):
        trainer.call("on_before_optimizer_step", None, 0)
        trainer.call(f"on_train_batch_{hook}", *given, BATCH, 0, 0)
    trainer.call("teardown", stage="fit")
    assert caplog.messages == ["chiplog: Trainer has no _on_before_fetch() in this version; its phase is left out"]
    assert [key for key, _, _ in finished_rows(chiplog_dir)] == ["rank/loss", "rank/samples_per_s"]


@pytest.mark.parametrize("loss", ["x", object(), torch.ones(2), torch.ones((), device="meta"), None])
def test_a_loss_that_is_no_number_costs_no_other_value(new: Callable[..., Any], chiplog_dir: Path, loss: Any) -> None:
    trainer = Trainer(new(), accumulate=2)
    trainer.fit([BATCH] * 2, loss)
    trainer.fit([BATCH] * 2, torch.tensor(0.5))
    assert [key for key, _, _ in finished_rows(chiplog_dir)] == [
        "rank/samples_per_s",
        "rank/loss",
        "rank/samples_per_s",
    ]


def test_a_pickle_of_a_callback_that_records_records_on(new: Callable[..., Any], chiplog_dir: Path) -> None:
    callback = new()
    trainer = Trainer(callback)
    trainer.call("setup", stage="fit")
    trainer.call("on_train_batch_start", BATCH, 0)
    Trainer(pickle.loads(pickle.dumps(callback))).fit([BATCH])
    assert [key for key, _, _ in finished_rows(chiplog_dir)] == ["rank/loss", "rank/samples_per_s"]
