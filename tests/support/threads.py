"""Threads that do the same at once."""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.waiting import WAIT_S

_SWITCH_INTERVAL_S = 1e-6  # after it a thread hands over the interpreter: between nearly all of its instructions


def run_side_by_side(work: Callable[[Any], object], values: Iterable[Any], *, switches_often: bool = False) -> None:
    """Call a function with each value in a thread that has the value as its name, and wait until all have ended."""
    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=work, args=(value,), name=str(value)) for value in values]
    if switches_often:
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
