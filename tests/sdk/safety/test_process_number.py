"""A forked child has another number than its parent, whichever way it was forked, and also before any hook."""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from chiplog.safety import process_number
from tests.support.forks import FORKS
from tests.support.waiting import WAIT_S


def in_child(report: Callable[[], object], fork: Callable[[], int] = os.fork) -> str:
    """Return what a forked child reports, as text."""
    source, target = os.pipe()
    pid = fork()
    if not pid:
        signal.alarm(60)
        os.write(target, repr(report()).encode())
        os._exit(0)
    os.close(target)
    with open(source) as reader:
        text = reader.read()
    os.waitpid(pid, 0)
    return text


# In a process without other threads: after clone(2) a lock of libc that one of them held is never released.
NUMBERS = """
import sys
from chiplog.safety.process_number import process_number
from tests.sdk.safety.test_process_number import in_child
from tests.support.forks import FORKS

fork, own = FORKS[sys.argv[1]], process_number()
child, grandchild = eval(in_child(lambda: (process_number(), in_child(process_number, fork)), fork))
assert own < child < int(grandchild), (own, child, grandchild)
assert process_number() == own
"""


@pytest.mark.parametrize("how", FORKS)
def test_child_and_grandchild_have_numbers_that_no_ancestor_has(how: str) -> None:
    subprocess.run([sys.executable, "-c", NUMBERS, how], timeout=WAIT_S, check=True)


def test_a_child_that_c_code_forked_may_start_no_threads() -> None:
    assert process_number.may_start_threads()
    assert in_child(process_number.may_start_threads) == "True"
    assert in_child(process_number.may_start_threads, FORKS["fork(2) in C"]) == "False"
    # Python's fork makes it complete again.
    assert in_child(lambda: in_child(process_number.may_start_threads), FORKS["fork(2) in C"]) == "'True'"


def test_without_support_of_the_kernel_a_hook_clears_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_number, "_MADV_WIPEONFORK", 9999)

    def report() -> tuple[int, str]:
        page = process_number._new_page()
        page[0] = 7
        return page[0], in_child(lambda: page[0])

    assert in_child(report) == "(7, '0')"


def test_the_kernel_here_clears_such_a_page() -> None:
    """Otherwise the tests of C forks show nothing."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(process_number._MADV_WIPEONFORK)
    memory[0] = 1
    assert in_child(lambda: memory[0], ctypes.PyDLL(None).fork) == "0"
