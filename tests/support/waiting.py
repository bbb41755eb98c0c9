"""Waiting for what another process does."""

import time
from collections.abc import Callable
from typing import Any

WAIT_S = 120.0  # generous: a loaded machine is slow, a hung test names itself


def wait_until(holds: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> Any:
    """Return the first true result of `holds`, or fail naming what was waited for."""
    deadline = time.monotonic() + wait_s
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {wait_s:g} s in vain for: {what}"
        time.sleep(0.02)
