"""When a process ended is noticed by pidfd, and garbage in place of a PID is not."""

import subprocess
import sys

from chiplog_agent.deaths import Deaths
from tests.conftest import wait_until


def test_the_end_of_a_killed_process_gets_a_time() -> None:
    deaths = Deaths()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    deaths.watch(b"p" * 16, process.pid)
    assert not deaths.look(1)
    assert deaths.time_of(b"p" * 16) is None
    process.kill()
    wait_until(lambda: deaths.look(42), "the pidfd to tell")
    process.wait()
    assert deaths.time_of(b"p" * 16) == 42
    deaths.forget(b"p" * 16)
    assert deaths.time_of(b"p" * 16) is None


def test_what_is_no_pid_of_a_living_process_is_left_to_the_lock() -> None:
    deaths = Deaths()
    for pid in (None, "12", -1, 0, True, 1 << 40, (1 << 31) - 1):
        deaths.watch(b"p" * 16, pid)
    assert not deaths.look(1)
