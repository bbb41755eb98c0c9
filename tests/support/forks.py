"""Ways to fork a process: by Python, and past its hooks."""

import ctypes
import os
import platform
import signal
import sys
import time
from collections.abc import Callable

_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), -1)  # the number of clone(2)


def fork_in_c() -> int:
    """Fork by libc. PyDLL holds the interpreter lock: no other thread can hold it in the child."""
    return _while_no_thread_asks(lambda: int(ctypes.PyDLL(None).fork()))


def clone() -> int:
    """Fork by the bare system call, of which libc knows nothing."""
    return _while_no_thread_asks(lambda: int(ctypes.PyDLL(None).syscall(_CLONE, int(signal.SIGCHLD), 0, 0, 0, 0)))


def _while_no_thread_asks(fork: Callable[[], int]) -> int:
    """Fork while no other thread waits for the interpreter lock.

    After the switch interval such a thread asks the one that holds the lock to hand it over. A child that has inherited
    the question waits forever for a thread that it does not have. A child that waits all the same is ended.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5.0)
    time.sleep(0.02)  # those that wait already, by the former interval, get the lock
    pid = fork()
    sys.setswitchinterval(interval)
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
    return pid


FORKS: dict[str, Callable[[], int]] = {"os.fork": os.fork, "fork(2) in C": fork_in_c}
if _CLONE > 0:
    FORKS["clone(2)"] = clone
