"""The run of a framework's logger."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import chiplog
from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.recording.run import current_run

pytestmark = pytest.mark.usefixtures("no_run")


def test_a_run_is_opened_at_the_first_use_and_is_the_current_one() -> None:
    of_framework = FrameworkRun(project="p", config={"lr": 1})
    assert current_run.current() is None
    run = of_framework.open()
    assert (run.project, dict(run.config), of_framework.open()) == ("p", {"lr": 1}, run)
    assert FrameworkRun(project="other").open() is run


def test_the_run_of_a_script_is_used() -> None:
    run = chiplog.init(project="of the script")
    assert FrameworkRun(project="p").open() is run


def test_what_comes_after_the_end_of_the_run_opens_no_other_one_but_a_new_logger_does() -> None:
    of_framework = FrameworkRun(project="p")
    run = of_framework.open()
    run.finish()
    assert of_framework.open() is run
    second = FrameworkRun(project="p").open()
    assert second is not run and not second._finished
    assert of_framework.open() is second


def test_a_pickle_has_the_arguments_alone() -> None:
    of_framework = FrameworkRun(project="p")
    of_framework.open().finish()
    again = pickle.loads(pickle.dumps(of_framework))
    assert again.open().project == "p"
    assert not again.open()._finished


def test_threads_that_use_it_first_at_once_share_a_run_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    n_threads = 8
    of_framework, together = FrameworkRun(project="p"), threading.Barrier(n_threads)

    def use(_: int) -> chiplog.Run:
        together.wait()
        return of_framework.open()

    with ThreadPoolExecutor(n_threads) as pool:
        assert len(set(pool.map(use, range(n_threads)))) == 1
    assert not caplog.messages


def test_finish_ends_the_run_that_was_opened_here_and_no_other() -> None:
    of_script = chiplog.init(project="of the script")
    borrowed = FrameworkRun()
    assert borrowed.open() is of_script
    borrowed.finish()
    assert not of_script._finished
    of_script.finish()
    own = FrameworkRun(project="p")
    own.finish()
    run = own.open()
    own.finish()
    assert run._finished


def test_a_config_goes_into_the_run_of_a_script_once() -> None:
    run = chiplog.init(config={"lr": 1})
    of_framework = FrameworkRun(config={"width": 4})
    of_framework.open()
    run.config["width"] = 8
    of_framework.open()
    assert dict(run.config) == {"lr": 1, "width": 8}
