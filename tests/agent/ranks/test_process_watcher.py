"""When a process ended is noticed by pidfd, and garbage in place of a PID is not."""

import os
import select
import signal
import subprocess
import sys

import pytest

from chiplog_agent.ranks.process_watcher import ProcessExit, ProcessWatcher
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


def test_the_end_of_a_killed_process_gets_a_time() -> None:
    deaths = ProcessWatcher()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    deaths.watch(b"p" * 16, process.pid)
    assert not deaths.poll(1)
    assert deaths.exit_of(b"p" * 16) is None
    process.kill()
    wait_until(lambda: select.select([deaths], [], [], 0)[0], "the descriptor that reports all of them")
    assert deaths.poll(42)
    process.wait()
    assert deaths.exit_of(b"p" * 16) == ProcessExit(42, signal.SIGKILL, "/proc/PID/stat")
    deaths.forget(b"p" * 16)
    assert deaths.exit_of(b"p" * 16) is None


def test_a_wait_lasts_until_a_process_has_ended() -> None:
    deaths = ProcessWatcher()
    assert not deaths.wait(0.0), "no process is watched"
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    deaths.watch(b"p" * 16, process.pid)
    assert not deaths.wait(0.0)
    process.kill()
    assert deaths.wait(WAIT_S)
    assert deaths.poll(1) and not deaths.wait(0.0), "it is reported once"
    process.communicate()


@pytest.mark.parametrize("is_reaped", [True, False], ids=["reaped", "zombie"])
@pytest.mark.parametrize(
    ("how", "code", "number"),
    [
        ("os._exit(3)", 3, None),
        ("os._exit(0)", 0, None),
        ("os.kill(os.getpid(), 9)", None, 9),
        ("os.kill(os.getpid(), 15)", None, 15),
        ("os.abort()", None, 6),
    ],
)
def test_the_status_of_a_process_is_known_before_and_after_its_parent_waited_for_it(
    how: str, code: int | None, number: int | None, *, is_reaped: bool
) -> None:
    deaths = ProcessWatcher()
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", f"import os, sys; sys.stdin.read(); {how}"], stdin=subprocess.PIPE
    )
    deaths.watch(b"p" * 16, process.pid)
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if is_reaped:
        process.wait()
    assert deaths.poll(42)
    death = deaths.exit_of(b"p" * 16)
    assert death is not None
    assert (death.exit_code, death.exit_signal) == (code, number)
    assert death.source == ("pidfd" if is_reaped else "/proc/PID/stat")
    process.wait()


def test_what_is_no_pid_of_a_living_process_is_left_to_the_lock() -> None:
    deaths = ProcessWatcher()
    for pid in (-1, 0, 1 << 40, (1 << 31) - 1):
        deaths.watch(b"p" * 16, pid)
    assert not deaths.poll(1)


@proves("one-descriptor-per-process", "a process costs an agent one descriptor", value="None")
def test_a_process_costs_one_descriptor_however_many_producers_it_has() -> None:
    def n_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    deaths = ProcessWatcher()
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
    deaths = ProcessWatcher()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    one, other, late = (bytes([number]) * 16 for number in range(3))
    deaths.watch(one, process.pid)
    deaths.watch(other, process.pid)
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not reaped: its PID is still its own
    deaths.watch(late, process.pid)
    assert deaths.poll(42)
    assert [death.ts_us for death in map(deaths.exit_of, (one, other, late)) if death] == [42] * 3
    assert not deaths.poll(43)
    process.wait()
    for producer in (one, other, late):
        deaths.forget(producer)
        assert deaths.exit_of(producer) is None
