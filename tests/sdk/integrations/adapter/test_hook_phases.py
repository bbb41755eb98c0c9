"""The open phase of a framework's loop."""

import pickle
from pathlib import Path

import pytest

from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.integrations.adapter.hook_phases import HookPhases
from chiplog.recording.run import current_run


@pytest.fixture
def of_framework(no_run: Path) -> FrameworkRun:
    return FrameworkRun(project="p")


def _open_and_ended(of_framework: FrameworkRun) -> tuple[set[str], set[str]]:
    timing = of_framework.open()._timing
    return {name for name, threads in timing.open_by_thread.items() if threads}, set(timing.totals)


def test_one_phase_is_open_at_a_time(of_framework: FrameworkRun) -> None:
    phases = HookPhases(of_framework)
    assert current_run.current() is None
    phases.begin("data")
    assert _open_and_ended(of_framework) == ({"data"}, set())
    phases.begin("forward")
    assert _open_and_ended(of_framework) == ({"forward"}, {"data"})
    phases.end()
    phases.end()
    assert _open_and_ended(of_framework) == (set(), {"data", "forward"})


def test_the_phases_belong_to_the_next_step_that_is_logged(of_framework: FrameworkRun) -> None:
    phases = HookPhases(of_framework)
    phases.begin("forward")
    phases.end()
    of_framework.open().log({"loss": 1.0}, step=3)
    assert _open_and_ended(of_framework) == (set(), set())


def test_a_pickle_has_no_open_phase(of_framework: FrameworkRun) -> None:
    phases = HookPhases(of_framework)
    phases.begin("forward")
    again = pickle.loads(pickle.dumps(phases))
    again.end()
    assert _open_and_ended(of_framework) == ({"forward"}, set())
    again.begin("data")
    assert _open_and_ended(of_framework) == ({"forward", "data"}, set())
    again.end()
    phases.end()


def test_the_end_of_a_phase_whose_run_has_finished_does_nothing(of_framework: FrameworkRun) -> None:
    phases = HookPhases(of_framework)
    phases.begin("forward")
    of_framework.open().finish()
    phases.end()
    phases.begin("data")
    phases.end()
