"""Phases of a step: what is timed, to which step it belongs, and that nothing raises into training."""

import copy
import os
import threading
import time

import pytest

from chiplog.timing.phases import Phase, Timing
from tests.support.sdk_events import phases
from tests.support.threads import run_side_by_side


def test_phases_wait_for_the_next_log_also_when_it_takes_the_fast_path(run, offline) -> None:
    for step in range(3):
        with run.phase("forward"), run.phase("attention"):
            pass
        run.log({"loss": 0.5}, step=step)
        run.log({"loss": 0.25}, step=step)
    run.finish()
    assert [(step, list(seconds)) for step, seconds in phases(offline())] == [
        (step, ["attention", "forward"]) for step in range(3)
    ]


def test_a_phase_inside_of_itself_counts_once_and_inside_of_another_for_both(run, offline) -> None:
    @run.phase("recursive")
    def recursive(depth: int) -> None:
        with run.phase("leaf"):
            time.sleep(0.002)
        if depth:
            recursive(depth - 1)

    began = time.perf_counter()
    recursive(20)
    took = time.perf_counter() - began
    run.log({"x": 1.0})
    run.finish()
    [(_, seconds)] = phases(offline())
    assert 21 * 0.002 <= seconds["leaf"] <= seconds["recursive"] <= took


def test_one_phase_object_may_be_entered_inside_of_itself(run, offline) -> None:
    forward = run.phase("forward")
    with forward, forward:
        time.sleep(0.002)
    with forward:
        time.sleep(0.002)
    run.log({"x": 1.0})
    run.finish()
    [(_, seconds)] = phases(offline())
    assert list(seconds) == ["forward"]
    assert seconds["forward"] >= 0.004


def test_threads_time_the_same_phase_side_by_side(run, offline) -> None:
    barrier = threading.Barrier(3)

    def work(number: int) -> None:
        with run.phase("io"):
            barrier.wait()
            time.sleep(0.005)

    run_side_by_side(work, range(3))
    run.log({"x": 1.0})
    run.finish()
    [(_, seconds)] = phases(offline())
    assert seconds["io"] >= 0.015


def test_a_phase_that_another_thread_leaves_is_over(run, offline) -> None:
    for step in range(4):
        phase = run.phase("save")
        phase.__enter__()
        callback = threading.Thread(target=phase.__exit__, args=(None, None, None))
        callback.start()
        callback.join()
        run.log({"x": 1.0}, step=step)
    run.finish()
    assert [(step, list(seconds)) for step, seconds in phases(offline())] == [(step, ["save"]) for step in range(4)]


def test_tasks_that_overlap_in_a_phase_give_each_step_its_seconds(run, offline) -> None:
    began = time.perf_counter()
    one, other = run.phase("fetch"), run.phase("fetch")  # as two tasks of asyncio would: one is in it all the time
    one.__enter__()
    for step in range(8):
        other.__enter__()
        time.sleep(0.002)
        one.__exit__(None, None, None)
        run.log({"x": 1.0}, step=step)
        one, other = other, one
    one.__exit__(None, None, None)
    took = time.perf_counter() - began
    run.finish()
    found = phases(offline())
    assert [step for step, _ in found][:8] == list(range(8))
    assert min(seconds["fetch"] for _, seconds in found[:8]) >= 0.002
    assert sum(seconds["fetch"] for _, seconds in found) <= took


def test_a_decorated_function_keeps_its_name_its_result_and_its_exceptions(run, offline) -> None:
    @run.phase("backward")
    def backward(value: int, *, by: int = 1) -> float:
        """Divide."""
        return value / by

    assert (backward.__name__, backward.__doc__, backward(6, by=3)) == ("backward", "Divide.", 2.0)
    with pytest.raises(ZeroDivisionError):
        backward(1, by=0)
    run.log({"x": 1.0})
    run.finish()
    assert [list(seconds) for _, seconds in phases(offline())] == [["backward"]]


def test_a_generator_is_not_timed_and_that_is_said(run, offline, caplog) -> None:
    @run.phase("batches")
    def batches():
        yield 1

    assert list(batches()) == [1]
    run.finish()
    assert phases(offline()) == []
    assert "phase 'batches' on a generator or coroutine times nothing; put `with` inside of it" in caplog.text


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


def test_a_phase_may_be_named_by_anything_and_left_without_having_been_entered(run, offline) -> None:
    for name in (3, None, Unhashable(), "x"):
        with run.phase(name):
            pass
    run.phase("never entered").__exit__(None, None, None)
    run.log({"x": 1.0})
    run.finish()
    assert [list(seconds) for _, seconds in phases(offline())] == [["3", "None", "x"]]


def test_phases_that_no_log_followed_are_recorded_at_the_end(run, offline) -> None:
    run.log({"x": 1.0}, step=7)
    with run.phase("save"):
        pass
    run.finish()
    assert [(step, list(seconds)) for step, seconds in phases(offline())] == [(7, ["save"])]


def test_a_phase_after_the_end_is_nobodys(run, offline) -> None:
    forward = run.phase("forward")
    with forward:
        run.finish()
    with forward:
        pass
    assert phases(offline()) == []


def test_a_forked_child_times_phases_that_were_made_before_the_fork(run, offline) -> None:
    @run.phase("work")
    def work() -> None:
        pass

    with run.phase("parents"):
        pid = os.fork()
        if pid == 0:
            work()
            run.log({"x": 1.0}, step=3)
            run.finish()
            os._exit(0)
    os.waitpid(pid, 0)
    run.finish()
    assert sorted((step, list(seconds)) for step, seconds in phases(offline())) == [(0, ["parents"]), (3, ["work"])]


def test_a_copy_of_a_phase_is_the_phase_and_any_true_value_times_it_on_the_host() -> None:
    timing = Timing()
    phase = Phase(timing, "forward", on_host=1)  # type: ignore[arg-type]  # as a training may write it
    assert copy.deepcopy({"in a model": phase})["in a model"] is phase
    assert copy.copy(phase) is phase
    with phase:
        pass
    assert set(timing.totals) == {"forward"}
