import gc
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chiplog
from chiplog.native.loader import hot_path
from chiplog.recording.log.loop_calls import NO_STEP, STEP_MAX, LoopCalls, PythonLoopCalls
from chiplog_schemas.model.events import EventKind

needs_c = pytest.mark.skipif(hot_path is None, reason="the C part of the SDK is not built, or switched off")


@pytest.fixture
def run(offline: Any) -> Any:
    opened = chiplog.init(mode="offline", capture_console=False)
    yield opened
    opened.finish()


def python_functions_called(call: Callable[[], object]) -> list[str]:
    """Return the names of the Python functions that run in a call, without the call itself.

    No collection runs in it: other libraries have callbacks in Python, and step() reports the pause.
    """
    found: list[str] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            found.append(frame.f_code.co_name)

    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found[1:]


@needs_c
@pytest.mark.parametrize(
    "values",
    [
        {"loss": 0.5},
        {"loss": 1, "accuracy": True, "rate": 3e-4},
        {"loss": np.float32(0.5), "norm": np.float64(2), "count": np.int64(3)},
        {f"metric {number}": number / 7 for number in range(500)},
    ],
)
def test_a_usual_call_of_log_runs_no_python_code(run: Any, values: dict[str, Any]) -> None:
    run.log(values)  # the first call with these keys and types does
    assert python_functions_called(lambda: run.log(values)) == []
    assert python_functions_called(lambda: run.log(values, 7)) == []
    assert python_functions_called(lambda: run.log(data=values, step=8)) == []


@needs_c
def test_calls_in_turns_with_keys_that_begin_alike_run_no_python_code(run: Any) -> None:
    train, validation = ({"loss": np.float32(0.5), name: 1.0} for name in ("lr", "accuracy"))
    for values in (train, validation):
        run.log(values)
    for values in (train, validation):
        assert python_functions_called(lambda values=values: run.log(values)) == []


@needs_c
def test_phases_and_steps_run_no_python_code(run: Any) -> None:
    def step() -> None:
        with run.phase("forward"):
            pass
        run.log({"loss": 1.0})
        run.step()

    for _ in range(3):
        step()
    assert python_functions_called(step) == []


@needs_c
def test_host_tensors_are_read_without_python_code(run: Any) -> None:
    torch = pytest.importorskip("torch")
    values = {"loss": torch.tensor(0.5, requires_grad=True), "step": torch.tensor([3]), "done": torch.tensor(True)}
    run.log(values)
    assert python_functions_called(lambda: run.log(values)) == []


@needs_c
def test_what_c_does_not_take_is_logged_by_python(run: Any, offline: Any) -> None:
    odd: list[Any] = [{"text": "words"}, {"nested": {"a": 1.0}}, {"x": [1]}, {"big": 10**400}, {}, {"new": 1.0}]
    for data in odd:
        assert "log" in python_functions_called(lambda data=data: run.log(data))
    run.log({"last": 1.0})
    run.finish()
    assert len(offline(EventKind.TEXT)) == 1
    assert sum(event.kind == EventKind.METRICS for event in offline()) == 3


def test_the_steps_of_a_run_that_logged_nothing_and_of_one_that_logged_the_last_step(run: Any) -> None:
    assert (run._next_step, run._top_step) == (0, NO_STEP)
    run.log({"x": 1.0}, step=NO_STEP + 1)
    run.log({"x": 1.0}, step=NO_STEP + 1)
    assert (run._next_step, run._top_step) == (NO_STEP + 2, NO_STEP + 1)
    run.log({"x": 1.0}, step=STEP_MAX)
    run.log({"x": 1.0})
    assert (run._next_step, run._top_step) == (STEP_MAX, STEP_MAX)
    run.log({"x": 1.0}, step=NO_STEP, commit=False)
    assert run._top_step == STEP_MAX


def test_help_shows_the_same_for_c_and_python() -> None:
    for name in ("log", "phase", "step"):
        ours, pythons = getattr(LoopCalls, name), getattr(PythonLoopCalls, name)
        assert inspect.getdoc(ours) == inspect.getdoc(pythons)
        shown, expected = (
            [(p.name, p.default) for p in inspect.signature(call).parameters.values()] for call in (ours, pythons)
        )
        assert shown == expected
