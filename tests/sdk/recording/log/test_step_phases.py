"""Phases and steps: the event that each belongs to, also when the step hangs, fails or is the first one."""

from typing import Any

from chiplog.timing.phases import STEP
from tests.support.sdk_events import phases


def _names(offline: Any) -> list[tuple[int, list[str]]]:
    return [(step, list(seconds)) for step, seconds in phases(offline())]


def test_pending_phases_belong_to_the_step_that_is_logged_next(run: Any, offline: Any) -> None:
    run._timing.add("forward", 1.0)
    run.log({"loss": 1.0}, step=4)
    run.finish()
    assert _names(offline) == [(4, ["forward"])]


def test_a_callback_that_fails_leaves_its_phases_appended_and_is_reported(run: Any, offline: Any) -> None:
    def fails(step: int) -> None:
        raise ValueError("a model that is gone")

    run._timing.add("forward", 1.0)
    run._step_phases.attach(fails)
    assert run._step_phases.append_of_step(2) is False
    run.finish()
    assert _names(offline) == [(2, ["forward"])]
    assert run._diagnostics.counts["internal_error"] == 1


def test_callbacks_of_one_step_are_bounded(run: Any) -> None:
    called: list[int] = []
    for _ in range(100):
        run._step_phases.attach(called.append)
    run._step_phases.append(6)
    assert called == [6] * 64


def test_the_phases_of_an_open_step_are_appended_before_it_ends(run: Any, offline: Any, monkeypatch: Any) -> None:
    run.step()
    run.step()
    run._timing.add("forward", 1.0)
    monkeypatch.setattr(run._steps, "should_flush", lambda now: True)
    run._step_phases.poll_open_step()
    assert run._timing.totals == {"forward": 1.0}, "the rest of the step is still counted"
    run.finish()
    names = [(step, [key for key in keys if key != STEP]) for step, keys in _names(offline)]
    assert (2, ["forward"]) in names


def test_a_name_that_is_too_long_times_nothing(run: Any) -> None:
    with run.phase("p" * 10_000):
        pass
    assert run._timing.totals == {} and run._diagnostics.counts["phase_length"] == 1
