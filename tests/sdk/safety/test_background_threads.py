"""Background threads: a failure to start one is not an error, and the exit waits for the others."""

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chiplog.recording.sharing.environment import EnvironmentCollector
from chiplog.safety import background_threads
from tests.support import signals
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Event]]:
    """Let a signal's handler raise TimeoutError in each Thread.start(), once the thread runs. Return these threads."""
    running: list[threading.Event] = []
    start = threading._start_new_thread  # type: ignore[attr-defined]

    def interrupted(function: Callable[[], None], arguments: tuple[Any, ...]) -> int:
        has_begun = threading.Event()
        number: int = start(lambda: (has_begun.set(), function()), arguments)
        assert has_begun.wait(WAIT_S)
        while function.__self__ in threading._limbo:  # type: ignore[attr-defined]
            pass
        running.append(has_begun)
        signal.raise_signal(signal.SIGUSR1)
        return number

    monkeypatch.setattr(threading, "_start_new_thread", interrupted)
    with signals.handling(signal.SIGUSR1, signals.raising(TimeoutError("the training's own"))):
        yield running


def test_what_a_handler_raises_while_a_thread_starts_reaches_the_training(raising: list[threading.Event]) -> None:
    done = threading.Event()
    collector = EnvironmentCollector(lambda message, facts: done.set(), {})
    for start in (lambda: background_threads.start_thread(done.set, name="test"), collector.start):
        done.clear()
        with pytest.raises(TimeoutError, match="the training's own"):
            start()
        assert done.wait(WAIT_S), "the thread runs"
    collector.start()
    assert len(raising) == 2, "it was started once"
    collector.stop()


def test_a_thread_runs_its_target_and_does_not_hold_the_process() -> None:
    found: list[object] = []
    done = threading.Event()

    def target(*arguments: object) -> None:
        found.extend((arguments, threading.current_thread().daemon))
        done.set()

    assert background_threads.start_thread(target, 1, 2, name="test")
    assert done.wait(WAIT_S)
    assert found == [(1, 2), True]


@proves(
    "no-native-thread-after-exit-wait",
    "no thread is started that the exit would not wait for",
    condition=False,
)
def test_no_thread_starts_once_the_exit_has_waited_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    is_exiting = threading.Event()
    monkeypatch.setattr(background_threads, "is_exiting", is_exiting)
    is_exiting.set()
    own: list[bool] = []
    in_here = lambda: own.append(threading.current_thread() is threading.main_thread())  # noqa: E731
    assert not background_threads.start_thread(in_here, name="test")
    assert own == []
    background_threads.result_within(WAIT_S, in_here, name="test")
    assert own == [True]


def test_a_system_without_threads_is_told_by_false(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert not background_threads.start_thread(print, name="test")


@pytest.mark.parametrize("has_threads", [True, False])
def test_a_result_comes_in_time_or_is_dropped_when_it_comes(has_threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_threads:
        monkeypatch.setattr(background_threads, "start_thread", lambda *given, **named: False)
    assert background_threads.result_within(WAIT_S, lambda: 1, name="quick") == 1
    with pytest.raises(ZeroDivisionError):
        background_threads.result_within(WAIT_S, lambda: 1 / 0, name="wrong")
    if not has_threads:
        return
    may_end, dropped, is_dropped = threading.Event(), list[bool](), threading.Event()
    drop = lambda late: (dropped.append(late), is_dropped.set())  # noqa: E731
    with pytest.raises(TimeoutError):
        background_threads.result_within(0.01, lambda: may_end.wait(WAIT_S), name="slow", drop=drop)
    may_end.set()
    assert is_dropped.wait(WAIT_S) and dropped == [True]
