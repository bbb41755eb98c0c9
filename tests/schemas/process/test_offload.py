"""A call that blocks for long, while the caller continues to send heartbeats."""

import threading

import pytest

from chiplog_schemas.process import offload as offload_module
from chiplog_schemas.process.offload import Offload
from tests.support.waiting import WAIT_S, wait_until


def test_the_caller_beats_while_the_call_blocks_and_gets_what_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_module, "HEARTBEAT_INTERVAL_S", 0.01)
    release = threading.Event()
    beats: list[threading.Thread] = []

    def beat() -> None:
        beats.append(threading.current_thread())
        if len(beats) == 5:
            release.set()

    threads: list[threading.Thread] = []

    def call() -> None:
        threads.append(threading.current_thread())
        assert release.wait(WAIT_S)

    def fail() -> None:
        raise OSError(5, "a disk that refuses")

    offload = Offload("test-offload", beat)
    offload.run(call)
    assert len(beats) >= 5
    assert set(beats) == {threading.current_thread()}
    for _ in range(2):
        with pytest.raises(OSError, match="a disk that refuses"):
            offload.run(fail)
    offload.run(lambda: threads.append(threading.current_thread()))
    assert len(set(threads)) == 1, "one thread for all calls"
    assert threads[0] is not threading.current_thread()
    offload.close()
    wait_until(lambda: not threads[0].is_alive(), "the end of the thread")


def test_one_that_never_ran_a_call_closes() -> None:
    Offload("test-offload", lambda: None).close()
