"""The callback for Hugging Face's Trainer on a stand-in for it; tests/integrations has the real one."""

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import chiplog
from chiplog.recording.run import current_run
from chiplog_schemas.model.events import EventKind
from tests.support import transformers_trainer
from tests.support.finished_rows import finished_rows
from tests.support.journals import read_events
from tests.support.sdk_events import by_label, phases

BATCH = {"input_ids": torch.zeros(3, 2), "labels": torch.zeros(3)}


class Within(transformers_trainer.TrainerCallback):
    """Trains where a step of another training ends."""

    def __init__(self, train: Callable[[], Any]) -> None:
        self._train = train

    def on_step_end(self, *given: Any, **named: Any) -> None:
        self._train()


def test_each_optimizer_step_is_a_row_of_this_rank_beside_what_the_trainer_logs(
    transformers: Any, chiplog_dir: Path
) -> None:
    trainer = transformers.Trainer(transformers.ChiplogCallback(project="p"), accumulate=2)
    assert trainer.train([BATCH] * 4, torch.tensor(0.25)) == "trained"
    assert finished_rows(chiplog_dir) == [
        *[("rank/loss", 1, 0.5), ("rank/samples_per_s", 1, 1.0), ("train/loss", 1, 0.5)],
        *[("rank/loss", 2, 0.5), ("rank/samples_per_s", 2, 1.0), ("train/loss", 2, 0.5)],
        ("eval/loss", 2, 2.0),
    ]
    of_steps = [(step, set(named) - {"step", "gc"}) for step, named in phases(read_events(chiplog_dir / "offline"))]
    train = {"data", "forward", "backward", "optimizer"}
    assert of_steps[:2] == [(1, train), (2, train)]
    assert set().union(*(named for _, named in of_steps[2:])) == {"data", "eval", "checkpoint"}


def test_the_config_has_the_model_and_the_arguments_that_ranks_share(transformers: Any) -> None:
    transformers.Trainer(transformers.ChiplogCallback(), run_name="tiny").train([BATCH])
    run = current_run.current()
    assert run is not None
    assert (run.name, dict(run.config)) == ("tiny", {"width": 4, "lr": 1})


@pytest.mark.parametrize(
    ("config", "recorded"),
    [
        (SimpleNamespace(to_dict=lambda: {"width": 4}), {"width": 4}),
        (SimpleNamespace(width=4), {"width": 4}),
        ("tiny", {}),
        (None, {}),
    ],
)
def test_a_model_has_any_config_or_none(transformers: Any, config: Any, recorded: dict[str, Any]) -> None:
    trainer = transformers.Trainer(transformers.ChiplogCallback())
    trainer.model = SimpleNamespace(config=config)
    trainer.train([BATCH])
    run = current_run.current()
    assert run is not None
    assert dict(run.config) == {"lr": 1, **recorded}


def test_a_trainer_that_only_evaluates_has_its_name_and_config(transformers: Any, chiplog_dir: Path) -> None:
    trainer = transformers.Trainer(run_name="tiny")
    trainer.callback_handler.add_callback(transformers.ChiplogCallback())  # which is not told of the Trainer's init
    trainer.evaluate()
    trainer.predict()
    trainer.call("on_log", logs=None)
    run = current_run.current()
    assert run is not None
    assert (run.name, dict(run.config)) == ("tiny", {"width": 4, "lr": 1})
    assert finished_rows(chiplog_dir) == [("eval/loss", 0, 2.0), ("test/loss", 0, 3.0)]


def test_a_callback_of_several_trainers_opens_a_run_for_each_that_begins_after_the_end_of_one(
    transformers: Any, chiplog_dir: Path
) -> None:
    callback = transformers.ChiplogCallback()
    for _ in range(2):
        transformers.Trainer(callback).train([BATCH])
        chiplog.finish()
    assert len(by_label(read_events(chiplog_dir / "offline"))) == 2


def test_a_checkpoint_is_an_event(transformers: Any, chiplog_dir: Path) -> None:
    transformers.Trainer(transformers.ChiplogCallback()).train([BATCH])
    finished_rows(chiplog_dir)
    found = [event.fields for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.NOTICE]
    assert [each["message"] for each in found if each["notice"] == "checkpoint"] == ["output/checkpoint-1"]


def test_a_trial_is_a_run_that_ends_with_it(transformers: Any) -> None:
    outer = chiplog.init(name="of the script")
    trainer = transformers.Trainer(transformers.ChiplogCallback())
    trainer.state = SimpleNamespace(
        global_step=0, is_hyper_param_search=True, trial_name="trial 7", trial_params={"lr": 2}
    )
    opened = []
    trainer.evaluate = lambda: opened.append(current_run.current())
    trainer.train([BATCH])
    (run,) = opened
    assert (run.name, run.config["trial"], run._finished) == ("trial 7", {"lr": 2}, True)
    assert current_run.current() is outer


def test_a_trial_that_begins_again_with_smaller_batches_is_one_run(transformers: Any, chiplog_dir: Path) -> None:
    trainer = transformers.Trainer(transformers.ChiplogCallback())
    trainer.train([BATCH])  # in a run before, whose phases are none of the trial
    trainer.state = SimpleNamespace(global_step=0, is_hyper_param_search=True, trial_name="t", trial_params={})
    trainer.train([BATCH], restarts=2)
    finished_rows(chiplog_dir)
    events = read_events(chiplog_dir / "offline")
    runs = by_label(events)
    assert len(runs) == 2
    for of_run in runs.values():
        assert [event.fields["state"]["exit_code"] for event in of_run if event.kind == EventKind.STATE] == [0]
        assert phases(of_run)[0][1].keys() >= {"data", "forward", "backward", "optimizer"}


def test_a_training_within_another_one_takes_nothing_of_it(transformers: Any, chiplog_dir: Path) -> None:
    callback = transformers.ChiplogCallback()
    outer, inner = transformers.Trainer(callback), transformers.Trainer(callback)
    outer.callback_handler.callbacks.insert(0, Within(lambda: inner.train([BATCH], 7.0)))
    outer.train([BATCH], 5.0)
    assert [row for row in finished_rows(chiplog_dir) if row[0] == "rank/loss"] == [
        ("rank/loss", 1, 7.0),
        ("rank/loss", 1, 5.0),
    ]


@pytest.mark.parametrize(("name", "code"), [("TrialPruned", 0), ("RuntimeError", 1)])
def test_a_trial_that_was_pruned_has_not_failed(transformers: Any, chiplog_dir: Path, name: str, code: int) -> None:
    trainer = transformers.Trainer(transformers.ChiplogCallback())
    trainer.state = SimpleNamespace(global_step=0, is_hyper_param_search=True, trial_name="t", trial_params={})
    with pytest.raises(Exception, match="of the trial"):
        trainer.train([BATCH], fails=type(name, (Exception,), {})("of the trial"))
    ends = [event.fields["state"] for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.STATE]
    assert [end["exit_code"] for end in ends] == [code]


def test_a_pickle_has_the_arguments(transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = transformers.ChiplogCallback(project="p")
    transformers.Trainer(callback).train([BATCH])
    current = current_run.current()
    assert current is not None
    current.finish()
    again = pickle.loads(pickle.dumps(callback))
    assert again._run.open().project == "p"
    assert again._run.open() is not current
