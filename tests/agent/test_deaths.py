"""When a process ended is noticed by pidfd, and garbage in place of a PID is not."""

import os
import subprocess
import sys

from chiplog_agent.deaths import Deaths
from tests.conftest import wait_until
from tests.fault.switch_off import Safeguard

SAFEGUARDS = [
    Safeguard(
        "a process costs an agent one descriptor",
        "agent/chiplog_agent/deaths.py",
        old="        descriptor = self._newest.get(pid)",
        new="        descriptor = None",
        test="test_a_process_costs_one_descriptor_however_many_producers_it_has",
    ),
]


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


def test_a_process_costs_one_descriptor_however_many_producers_it_has() -> None:
    def n_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    deaths = Deaths()
    before = n_descriptors()
    producers = [bytes([number]) * 16 for number in range(20)]
    for producer in producers:
        deaths.watch(producer, os.getpid())
        deaths.watch(producer, os.getpid())
    assert n_descriptors() == before + 1
    for producer in producers[1:]:
        deaths.forget(producer)
    assert n_descriptors() == before + 1, "one of them is still there"
    deaths.forget(producers[0])
    deaths.forget(producers[0])
    assert n_descriptors() == before
    deaths.watch(producers[0], os.getpid())
    assert n_descriptors() == before + 1, "and it may come again"
    deaths.forget(producers[0])


def test_all_producers_of_a_process_end_with_it_and_later_ones_are_of_another() -> None:
    deaths = Deaths()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    one, other, late = (bytes([number]) * 16 for number in range(3))
    deaths.watch(one, process.pid)
    deaths.watch(other, process.pid)
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not reaped: its PID is still its own
    deaths.watch(late, process.pid)
    assert deaths.look(42)
    assert [deaths.time_of(producer) for producer in (one, other, late)] == [42] * 3
    assert not deaths.look(43)
    process.wait()
    for producer in (one, other, late):
        deaths.forget(producer)
        assert deaths.time_of(producer) is None
