"""Progress of the relay in shared memory: another process reads it, and one process at a time moves bytes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from chiplog.console.shared_counters import SharedCounters
from chiplog_schemas.limits import CONSOLE_LINE_CHARS_MAX

OTHER = """
import sys, time
from chiplog.console.shared_counters import SharedCounters
counters = SharedCounters(int(sys.argv[1]))
print(counters.line_no, counters.is_waiting, counters.n_dropped, end=" ")
print(counters.passed(1), counters.recorded(1), counters.passed(2), flush=True)
print(counters.lock(), flush=True)
counters.note_passed(2, 5)
print("counted", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def memory() -> Iterator[int]:
    memory = os.memfd_create("counters")
    os.ftruncate(memory, SharedCounters.SIZE)
    yield memory
    os.close(memory)


def test_what_one_process_counts_another_reads_and_a_killed_one_leaves_the_lock(memory: int) -> None:
    counters = SharedCounters(memory)
    counters.line_no, counters.is_waiting, counters.n_dropped = 7, True, 3
    counters.note_passed(1, 30)
    counters.note_passed(1, 12)
    counters.note_recorded(1, 40)
    command = [sys.executable, "-c", OTHER, str(memory)]
    with subprocess.Popen(
        command, pass_fds=[memory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "7 True 3 42 40 0\n"
        assert other.stdout.readline() == "True\n"
        assert other.stdout.readline() == "counted\n"
        assert (counters.passed(2), counters.recorded(2)) == (5, 0)
        assert not counters.lock()
        other.send_signal(signal.SIGKILL)
        assert counters.lock(wait=True)
    counters.unlock()
    counters.close()


def test_the_begin_of_a_line_is_handed_over_once_for_each_stream(memory: int) -> None:
    ours, theirs = SharedCounters(memory), SharedCounters(memory)
    assert theirs.take_partial(1) == b""
    longest = "😀".encode() * (CONSOLE_LINE_CHARS_MAX + 1)
    ours.set_partial(1, longest)
    ours.set_partial(2, b"two")
    assert theirs.take_partial(1) == longest
    assert theirs.take_partial(1) == b""
    ours.set_partial(2, b"")
    assert theirs.take_partial(2) == b""
    ours.close()
    theirs.close()
