"""Background threads: a failure to start one is not an error, and the exit waits for the others."""

import threading

import pytest

from chiplog.safety import background_threads
from tests.support.waiting import WAIT_S


def test_a_thread_runs_its_target_and_does_not_hold_the_process() -> None:
    found: list[object] = []
    done = threading.Event()

    def target(*arguments: object) -> None:
        found.extend((arguments, threading.current_thread().daemon))
        done.set()

    assert background_threads.start_thread(target, 1, 2, name="test")
    assert done.wait(WAIT_S)
    assert found == [(1, 2), True]


def test_a_system_without_threads_is_told_by_false(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert not background_threads.start_thread(print, name="test")
