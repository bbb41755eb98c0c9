"""Ways to fork a process: by Python, and past its hooks."""

import ctypes
import os
import platform
import signal
from collections.abc import Callable

_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), -1)  # the number of clone(2)


def fork_in_c() -> int:
    """Fork by libc. PyDLL holds the interpreter lock: no other thread can hold it in the child."""
    return int(ctypes.PyDLL(None).fork())


def clone() -> int:
    """Fork by the bare system call, of which libc knows nothing."""
    return int(ctypes.PyDLL(None).syscall(_CLONE, int(signal.SIGCHLD), 0, 0, 0, 0))


FORKS: dict[str, Callable[[], int]] = {"os.fork": os.fork, "fork(2) in C": fork_in_c}
if _CLONE > 0:
    FORKS["clone(2)"] = clone
