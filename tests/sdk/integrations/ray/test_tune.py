"""The callback for Ray Tune, on trials as Ray hands them out; tests/integrations has the real one."""

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chiplog_schemas.model.events import EventKind
from tests.support.sdk_events import numbers

Ray = Callable[..., Any]
Events = Callable[..., list[Any]]


class Trial(SimpleNamespace):
    """A trial, as far as the callback sees it."""

    def __init__(self, number: int, error_file: Path | None = None) -> None:
        super().__init__(trial_id=f"t{number}", experiment_dir_name="e", config={"x": number}, last_result={})
        self.error_file = error_file
        self.status = "PAUSED"

    def __str__(self) -> str:
        return f"objective_{self.trial_id}"


def result_of(step: int, **values: Any) -> dict[str, Any]:
    return {"training_iteration": step, "pid": 7, "done": False, "nothing": None, "config": {}, **values}


@pytest.fixture
def report(ray: Ray) -> Any:
    module, _ = ray("tune")
    return pickle.loads(pickle.dumps(module.ChiplogLoggerCallback(project="p")))


def test_trials_side_by_side_are_runs_of_a_group(report: Any, offline: Events) -> None:
    trials = [Trial(1), Trial(2)]
    for trial in trials:
        report.log_trial_start(trial)
    runs = list(report._runs.values())
    for trial in trials:
        report.log_trial_result(1, trial, result_of(1, loss=trial.config["x"] / 2, nested={"a": 1}))
    described = [(run.id, run.name, run.group, run.project, run.label, run.config["x"]) for run in runs]
    assert described == [(f"e-t{n}", f"objective_t{n}", "e", "p", "trial", n) for n in (1, 2)]
    assert runs[0].config["tune"] == {"trial_id": "t1", "pid": 7}
    for trial in trials:
        report.log_trial_end(trial)
    row = [("nested/a", 1, 1.0), ("training_iteration", 1, 1.0)]
    assert sorted(numbers(offline())) == sorted([("loss", 1, 0.5), ("loss", 1, 1.0), *row, *row])
    assert [event.fields["state"]["state"] for event in offline(EventKind.STATE)] == ["finished"] * 2


def test_a_pause_keeps_the_run_open_and_the_experiment_ends_it(report: Any, offline: Events) -> None:
    trial = Trial(1)
    report.log_trial_start(trial)
    trial.config = {"x": 5}
    report.log_trial_start(trial)
    [run] = report._runs.values()
    assert run.config["x"] == 5
    report.on_experiment_end([trial, Trial(2)])
    [ended] = offline(EventKind.STATE)
    assert ended.fields["state"]["state"] == "finished"


def test_a_retry_is_the_next_attempt_of_the_same_run(report: Any, offline: Events, tmp_path: Path) -> None:
    error = tmp_path / "error.txt"
    error.write_text("Failure # 1\nTraceback\nValueError: bad\n\n")
    trial = Trial(1, error)
    report.log_trial_start(trial)
    report.on_trial_recover(1, [trial], trial)
    report.log_trial_start(trial)
    report.log_trial_end(trial)
    ended = [event.fields["state"] for event in offline(EventKind.STATE)]
    assert sorted(info["state"] for info in ended) == ["failed", "finished"]
    assert {info.get("reason") for info in ended} == {"ValueError: bad", None}
    [notice] = [event.fields for event in offline(EventKind.NOTICE) if event.fields["notice"] == "traceback"]
    assert notice["body"] == {"traceback": error.read_text(), "cause": "exception"}
    labels = {
        (event.fields["identity"]["run_id"], event.fields["identity"]["label"]) for event in offline(EventKind.IDENTITY)
    }
    assert labels == {("e-t1", "trial")}


def test_a_trial_whose_error_file_is_gone_has_failed(report: Any, offline: Events, tmp_path: Path) -> None:
    trial = Trial(1, tmp_path / "missing")
    report.log_trial_start(trial)
    report.log_trial_end(trial, failed=True)
    report.log_trial_end(trial, failed=True)
    [ended] = offline(EventKind.STATE)
    assert ended.fields["state"]["state"] == "failed"


def test_a_checkpoint_is_an_event_with_the_step_of_its_result(report: Any, offline: Events) -> None:
    trial = Trial(1)
    report.log_trial_start(trial)
    trial.last_result = result_of(3)
    report.on_checkpoint(1, [trial], trial, SimpleNamespace(path="/saved"))
    report.log_trial_end(trial)
    [notice] = [event.fields for event in offline(EventKind.NOTICE) if event.fields["notice"] == "checkpoint"]
    assert (notice["message"], notice["body"]) == ("/saved", {"step": 3})


def test_what_fails_inside_is_one_line(report: Any, caplog: pytest.LogCaptureFixture) -> None:
    report.log_trial_start(SimpleNamespace(trial_id="t9"))
    [line] = caplog.messages
    assert line.startswith("chiplog: log_trial_start of the callback for Ray Tune failed inside (")
