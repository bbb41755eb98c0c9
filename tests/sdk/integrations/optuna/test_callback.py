"""The callback for Optuna, on trials as Optuna hands them out; tests/integrations has the real one."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import chiplog
from chiplog.integrations.optuna import ChiplogCallback
from chiplog.recording.run import current_run
from chiplog.recording.run.run import Run

Rows = list[tuple[str | None, int | None, dict[str, Any]]]


@pytest.fixture(autouse=True)
def logged(no_run: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows: Rows = []
    monkeypatch.setattr(Run, "log", lambda self, row, step=None: rows.append((self.name, step, row)))
    return rows


class Study(SimpleNamespace):
    """Has an identity, as Optuna's."""

    __hash__ = object.__hash__


def study_of(*directions: str, metric_names: list[str] | None = None, best_value: float = 1.5) -> Any:
    named = [SimpleNamespace(name=direction.upper()) for direction in directions]
    given = {"metric_names": metric_names, "best_value": best_value}
    return Study(study_name="s", directions=named, sampler=0, pruner=None, **given)


def trial_of(number: int, values: list[float] | None, state: str = "COMPLETE", **more: Any) -> Any:
    ended = {"values": values, "state": SimpleNamespace(name=state), "duration": timedelta(seconds=2)}
    return SimpleNamespace(number=number, params={"x": 0.5, "kind": "a"}, intermediate_values={}, **ended, **more)


def test_a_trial_is_a_row_of_the_run_of_the_study(logged: Rows) -> None:
    report = ChiplogCallback(name="search")
    report(study_of("minimize"), trial_of(0, [1.5]))
    report(study_of("minimize"), trial_of(1, None, "FAIL"))
    params = {"params/x": 0.5, "params/kind": "a"}
    assert logged == [
        ("search", 0, {**params, "value": 1.5, "duration_s": 2.0, "state": "COMPLETE"}),
        ("search", 1, {**params, "duration_s": 2.0, "state": "FAIL"}),
    ]
    run = current_run.current()
    assert run is not None
    assert run.config["study"] == {"name": "s", "directions": ["minimize"], "sampler": "int", "pruner": "NoneType"}


def test_the_summary_has_the_best_value_of_the_trials_that_were_not_pruned(logged: Rows) -> None:
    report = ChiplogCallback()
    report(study_of("maximize", best_value=0.25), trial_of(0, [0.25]))
    report(study_of("maximize", best_value=0.25), trial_of(1, [0.75], "PRUNED"))
    run = current_run.current()
    assert run is not None
    assert run.summary["value"] == 0.25


@pytest.mark.parametrize(("names", "keys"), [(None, {"value_0", "value_1"}), (["loss", "size"], {"loss", "size"})])
def test_each_objective_has_a_value(logged: Rows, names: list[str] | None, keys: set[str]) -> None:
    ChiplogCallback()(study_of("minimize", "maximize", metric_names=names), trial_of(0, [1.0, 2.0]))
    assert keys <= set(logged[0][2])


def test_a_trial_is_a_run_with_what_its_objective_logs(logged: Rows) -> None:
    report = ChiplogCallback(run_per_trial=True)
    study = study_of("minimize")
    outer = chiplog.init(name="of the script")

    @report.track
    def objective(trial: Any) -> float:
        chiplog.log({"inner": 1})
        return 1.5

    trial = trial_of(3, [1.5], study=study)
    trial.intermediate_values = {0: 0.25}
    assert objective(trial) == 1.5
    run = current_run.current()
    report(study, trial)
    assert [(name, row) for name, _, row in logged] == [
        ("trial 3", {"inner": 1}),
        ("trial 3", {"intermediate_value": 0.25}),
        ("trial 3", {"value": 1.5, "duration_s": 2.0, "state": "COMPLETE"}),
    ]
    assert run is not None
    assert (run.group, run._finished, run.config["x"], run.config["trial"]) == ("s", True, 0.5, 3)
    assert current_run.current() is outer
    assert not outer._finished


def test_what_ends_a_trial_is_noted_and_passes(logged: Rows) -> None:
    report = ChiplogCallback(run_per_trial=True)

    @report.track
    def objective(trial: Any) -> float:
        raise ValueError("fails")

    trial = trial_of(0, None, "FAIL", study=study_of("minimize"))
    with pytest.raises(ValueError, match="fails"):
        objective(trial)
    run = current_run.current()
    assert run is not None
    assert run._end.status.is_failed
    report(trial.study, trial)
    assert run._finished


def test_of_several_callbacks_the_first_one_records_and_a_study_of_another_run_is_recorded_there(
    logged: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    report, study = ChiplogCallback(name="first"), study_of("minimize")
    for callback in (report, report, ChiplogCallback(), ChiplogCallback(run_per_trial=True, name="own")):
        callback(study, trial_of(0, [1.5]))
    assert [name for name, _, _ in logged] == ["first", "own"]
    assert len(caplog.records) == 2
    chiplog.finish()
    ChiplogCallback(name="again")(study, trial_of(0, [1.5]))
    assert logged[-1][0] == "again"


def test_a_choice_that_is_none_is_text(logged: Rows) -> None:
    trial = trial_of(0, [1.5])
    trial.params = {"kind": None}
    ChiplogCallback()(study_of("minimize"), trial)
    assert logged[0][2]["params/kind"] == "None"


def test_a_trial_without_what_a_trial_has_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    report = ChiplogCallback()
    report(study_of("minimize"), SimpleNamespace())
    assert len(caplog.records) == 1
