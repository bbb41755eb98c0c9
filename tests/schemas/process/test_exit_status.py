"""The exit status of a process that is not a child, on this kernel and on one that forgets it."""

import os
import subprocess
import sys

import pytest

from chiplog_schemas.process.exit_status import exit_status
from tests.support.waiting import WAIT_S

READER = """
import os, sys
from chiplog_schemas.process.exit_status import exit_status
pid = int(sys.argv[1])
descriptor = os.pidfd_open(pid)
print(flush=True)
sys.stdin.readline()
print(*exit_status(descriptor, pid), flush=True)
"""


@pytest.mark.parametrize(
    ("prefix", "is_reaped", "said"),
    [
        ([], True, "1024 pidfd"),
        ([], False, "1024 /proc/PID/stat"),
        (["-m", "tests.support.old_kernel", sys.executable], True, "None"),
        (["-m", "tests.support.old_kernel", sys.executable], False, "1024 /proc/PID/stat"),
    ],
)
def test_a_status_is_known_until_the_kernel_forgets_it(prefix: list[str], is_reaped: bool, said: str) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input(); import os; os._exit(4)"], stdin=subprocess.PIPE)
    command = [sys.executable, *prefix, "-c", READER, str(process.pid)]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None and process.stdin is not None
    reader.stdout.readline()
    process.stdin.write(b"\n")
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if is_reaped:
        process.wait()
    found, _ = reader.communicate("\n", timeout=WAIT_S)
    assert found.strip() == said
    process.wait()


def test_a_pidfd_of_a_process_that_runs_has_no_status() -> None:
    descriptor = os.pidfd_open(os.getpid())
    assert exit_status(descriptor, os.getpid()) == (None, "")
    os.close(descriptor)
