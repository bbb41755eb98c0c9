"""A forked child has another number than its parent, whichever way it was forked, and also before any hook."""

import mmap
import os
import signal
import subprocess
import sys
from ast import literal_eval
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


# These run in a process without other threads: a child of fork(2) or clone(2) can deadlock on a lock of libc or
# Python that another thread of its parent held.


def check_numbers(how: str) -> None:
    fork, own = FORKS[how], process_number.process_number()
    found = in_child(lambda: (process_number.process_number(), in_child(process_number.process_number, fork)), fork)
    child, grandchild = literal_eval(found)
    assert own < child < int(grandchild)
    assert process_number.process_number() == own


def check_threads() -> None:
    assert process_number.may_start_threads()
    assert in_child(process_number.may_start_threads) == "True"
    assert in_child(process_number.may_start_threads, FORKS["fork(2) in C"]) == "False"
    # Python's fork makes it complete again.
    assert in_child(lambda: in_child(process_number.may_start_threads), FORKS["fork(2) in C"]) == "'True'"


def check_wiped() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(process_number._MADV_WIPEONFORK)
    memory[0] = 1
    assert in_child(lambda: memory[0], FORKS["fork(2) in C"]) == "0"


def alone(check: Callable[..., None], *arguments: str) -> None:
    """Run one of these checks in a process of its own."""
    code = f"import sys; from {__name__} import {check.__name__} as check; check(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, *arguments], timeout=WAIT_S, check=True)


@pytest.mark.parametrize("how", FORKS)
def test_child_and_grandchild_have_numbers_that_no_ancestor_has(how: str) -> None:
    alone(check_numbers, how)


def test_a_child_that_c_code_forked_may_start_no_threads() -> None:
    alone(check_threads)


def test_without_support_of_the_kernel_a_hook_clears_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_number, "_MADV_WIPEONFORK", 9999)

    def report() -> tuple[int, str]:
        page = process_number._new_page()
        page[0] = 7
        return page[0], in_child(lambda: page[0])

    assert in_child(report) == "(7, '0')"


def test_the_kernel_here_clears_such_a_page() -> None:
    """Otherwise the tests of C forks show nothing."""
    alone(check_wiped)
