"""A child process of the receiver: started again after its end, and ended with its standard input."""

import logging
import subprocess
from collections.abc import Iterator

import pytest

from chiplog_collector.receiver.child_process import ChildProcess
from tests.support.waiting import wait_until

FIRST_S = 0.5


class Started:
    """What starts shells. Without a script a start is refused."""

    def __init__(self, script: str | None = "cat") -> None:
        self.script = script
        self.processes: list[subprocess.Popen[bytes]] = []
        self.child = ChildProcess("the cat", self._spawn, restart_min_s=FIRST_S, stop_s=0.2)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        if self.script is None:
            raise OSError("no more processes")
        self.processes.append(subprocess.Popen(["sh", "-c", self.script], stdin=subprocess.PIPE))
        return self.processes[-1]


@pytest.fixture
def started() -> Iterator[Started]:
    started = Started()
    yield started
    started.child.stop()


def test_a_process_that_ended_is_started_again_after_a_wait_that_grows(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    started.script = "exit 3"
    now = 1.0
    for n, wait_s in enumerate((FIRST_S, 2 * FIRST_S), 1):
        started.child.tick(now)
        process = started.processes[n - 1]
        wait_until(lambda process=process: process.poll() is not None, "its end")
        started.child.tick(now)
        assert started.child.ended_with == 3
        assert f"the cat ended with exit status 3; starting it again in {wait_s:.1f} s" in caplog.text
        started.child.tick(now + 0.9 * wait_s)
        assert len(started.processes) == n
        now += wait_s


def test_a_process_ends_with_its_standard_input(started: Started) -> None:
    started.child.tick(1.0)
    started.child.stop()
    [process] = started.processes
    assert process.returncode == 0
    started.child.stop()  # nothing runs any more


def test_a_process_that_does_not_end_by_itself_is_terminated(started: Started) -> None:
    started.script = "exec sleep 600"
    started.child.tick(1.0)
    started.child.stop()
    [process] = started.processes
    assert process.returncode == -15


def test_a_refused_start_is_logged_once_and_tried_again(started: Started, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    started.script = None
    for now in (1.0, 10.0, 20.0):
        started.child.tick(now)
    said = "the cat cannot be started: no more processes; trying again, events are still received"
    assert caplog.text.count(said) == 1
    started.script = "cat"
    started.child.tick(30.0)
    assert len(started.processes) == 1
    assert caplog.text.count("the cat could be started again") == 1
