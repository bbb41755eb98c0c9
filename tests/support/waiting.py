"""Waiting for what another process does. All waits of tests are multiples of one unit."""

import os
import time
from collections.abc import Callable
from typing import Any

TIMES = float(os.environ.get("CHIPLOG_TEST_WAIT_TIMES", "1"))  # for a machine that is slower than any that was tried
WAIT_S = 180.0 * TIMES  # the unit. Generous: a loaded machine is slow, and a hung test names itself
WAIT_MS = int(1000 * WAIT_S)
_PAUSE_MIN_S = 0.02  # between two checks
# A check that queries SQL takes 20 ms of CPU time. Without pauses in proportion to it, tests that wait would take half
# of the CPU time that the processes need for which they wait.
_PAUSE_PER_CPU = 8.0
_PAUSE_MAX_S = 0.25


def wait_until(holds: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> Any:
    """Return the first true result of `holds`, or fail naming what was waited for."""
    begun = time.monotonic()
    while True:
        cpu_before_s = time.thread_time()
        found = holds()
        if found:
            return found
        waited_s = time.monotonic() - begun
        assert waited_s < wait_s, f"waited {wait_s:g} s in vain for: {what}"
        costly_s = _PAUSE_PER_CPU * (time.thread_time() - cpu_before_s)
        time.sleep(max(_PAUSE_MIN_S, min(waited_s / 2, costly_s, _PAUSE_MAX_S)))
