"""The callback for Ray Train in a worker; tests/integrations has the real one."""

import os
import pickle
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import chiplog
from chiplog_schemas.model.events import EventKind
from tests.support.sdk_events import numbers, phases

Ray = Callable[..., Any]
Events = Callable[..., list[Any]]


def test_a_worker_logs_its_reports_as_its_rank_at_the_steps_that_ray_counts(ray: Ray, offline: Events) -> None:
    train, worker = ray("train", rank=1)
    callback = pickle.loads(pickle.dumps(train.ChiplogCallback(project="p")))
    callback.after_init_train_context()
    run = chiplog.run
    assert run is not None
    assert (run.id, run.label, run.rank, run.world_size, run.is_primary) == ("ray-abc", "rank1", 1, 2, False)
    assert (run.name, run.project, run.config["lr"], run.config["ray"]["num_workers"]) == ("tiny", "p", 0.5, 2)
    assert os.environ["CHIPLOG_RUN_ID"] == "ray-abc" and "RANK" not in os.environ
    worker.context.report_call_index = 3  # of reports before a retry
    worker.utils.report(metrics={"loss": 1.5})
    worker.utils.report({"loss": 2.5, "nested": {"a": 1}})
    callback.before_worker_shutdown()
    assert numbers(offline()) == [("loss", 3, 1.5), ("loss", 4, 2.5), ("nested/a", 4, 1.0)]
    [ended] = offline(EventKind.STATE)
    assert ended.fields["state"]["state"] == "finished"


def test_a_checkpoint_is_an_event_of_rank_0_and_a_phase(ray: Ray, offline: Events) -> None:
    train, worker = ray("train")
    callback = train.ChiplogCallback()
    callback.after_init_train_context()
    worker.utils.report(metrics={}, checkpoint=SimpleNamespace(path="/saved/1"))
    worker.utils.report(metrics={})
    worker.context.checkpoint = SimpleNamespace(path="/saved/2")  # one that was uploaded in the background
    callback.before_worker_shutdown()
    found = [event.fields for event in offline(EventKind.NOTICE) if event.fields["notice"] == "checkpoint"]
    assert [(row["message"], row["body"]) for row in found] == [("/saved/1", {"step": 0}), ("/saved/2", {"step": 1})]
    assert [step for step, named in phases(offline()) if "checkpoint" in named] == [0]


@pytest.mark.parametrize(
    ("error", "is_running", "reason", "cause"),
    [
        (SimpleNamespace(_base_exc=ValueError("bad")), False, "ValueError: bad", "exception"),
        (None, True, "Ray stopped this worker: another one failed, or the training was aborted", "interrupted"),
    ],
)
def test_a_worker_that_fails_or_is_stopped_has_failed(
    ray: Ray, offline: Events, error: Any, is_running: bool, reason: str, cause: str
) -> None:
    train, worker = ray("train")
    callback = train.ChiplogCallback()
    callback.after_init_train_context()
    worker.error, worker.is_running = error, is_running
    callback.before_worker_shutdown()
    [ended] = offline(EventKind.STATE)
    info = ended.fields["state"]
    assert (info["state"], info["reason"], info["cause"]) == ("failed", reason, cause)


def test_workers_are_in_the_run_that_is_open_in_the_driver(ray: Ray) -> None:
    train, _ = ray("train")
    callback = train.ChiplogCallback()
    alone = pickle.loads(pickle.dumps(callback))
    run = chiplog.init()
    joined = pickle.dumps(callback)
    run.finish()
    joined = pickle.dumps(pickle.loads(joined))  # by the controller
    alone.after_init_train_context()
    assert chiplog.run is not None and chiplog.run.id == "ray-abc"
    chiplog.finish()
    os.environ["CHIPLOG_RUN_ID"] = ""
    pickle.loads(joined).after_init_train_context()
    assert chiplog.run.id == run.id and chiplog.run.name is None


def test_what_fails_inside_is_one_line_and_the_training_goes_on(ray: Ray, caplog: pytest.LogCaptureFixture) -> None:
    train, worker = ray("train")
    del worker.context.get_world_rank
    callback = train.ChiplogCallback()
    callback.after_init_train_context()
    worker.utils.report(metrics={"loss": 1})
    callback.before_worker_shutdown()
    [line] = caplog.messages
    assert line.startswith("chiplog: the callback for Ray Train records nothing (")


def test_a_version_of_ray_without_callbacks_in_workers_is_one_line(
    ray: Ray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ray.train.v2._internal.execution.callback", None)
    train, _ = ray("train")
    train.ChiplogCallback(project="p")
    (line,) = caplog.messages
    assert line.startswith("chiplog: this version of Ray calls no callback in its workers (")
    assert line.endswith("call chiplog.init() and chiplog.log() in the training function")
