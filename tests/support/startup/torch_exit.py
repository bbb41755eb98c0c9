"""Let a training end only when torch's threads for gloo are idle: a late one would abort the process.

The all-reduces of DDP keep a `contextvars.Context` of the backward pass (torch/autograd/graph.py). A thread of gloo is
its last owner, and takes the GIL to drop it. While the interpreter ends, Python before 3.14 unwinds a thread that takes
the GIL. The destructors of torch cannot be unwound, and the process has exit code -6: on a busy machine one training of
twenty, also without chiplog. `destroy_process_group()` does not join these threads.
"""

import atexit
import contextlib
import os
import sys
import time

_NAME = "pt_gloo_runloop"
_LOOK_S = 0.02  # longer than Python's switch interval: a thread that waits for the GIL gets it between two looks
_LOOKS_MAX = 1_500  # 30 s: then the process ends as it would without this module


def _threads_of_gloo() -> list[tuple[str, str, str]]:
    """Return each thread with its state and how often it has slept."""
    found = []
    for task in os.listdir("/proc/self/task"):
        # OSError: the thread has ended.
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/status", encoding="utf-8") as file:
            status = dict(line.split(":\t", 1) for line in file.read().splitlines())
            if status["Name"] == _NAME:
                found.append((task, status["State"][0], status["voluntary_ctxt_switches"]))
    return found


def _wait_for_gloo() -> None:
    """Return once each thread has slept from one look to the next."""
    former = None
    for _ in range(_LOOKS_MAX if "torch" in sys.modules else 0):
        threads = _threads_of_gloo()
        if all(state == "S" for _, state, _ in threads) and threads in ([], former):
            return
        former = threads
        time.sleep(_LOOK_S)


atexit.register(_wait_for_gloo)  # the first one registered runs last
