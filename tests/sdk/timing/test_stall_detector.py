"""Phases that stay open for long: reported once, and not where steps are slow as usual."""

import threading
import time

from chiplog.timing.phases import Phase, Timing
from chiplog.timing.stall_detector import StallDetector
from chiplog.timing.steps import Steps


def test_a_phase_that_lingers_is_told_once_and_slow_steps_are_no_hang() -> None:
    timing, told = Timing(), []
    steps = Steps(timing)
    stalled = StallDetector(timing, steps, lambda kind, notice, level, message, body: told.append((notice, body)))
    now = time.perf_counter()
    backward = Phase(timing, "backward")
    with backward:
        for second in range(10):
            stalled.poll(now + second, 12)
    [(notice, body)] = told
    assert (notice, body["phase"], body["step"]) == ("phase_open", "backward", 12)
    assert body["since_us"] <= time.time_ns() // 1000
    for second in range(20, 26):  # as long as before
        with backward:
            timing.open_by_thread["backward"][threading.get_ident()] = now + 20
            stalled.poll(now + second, 13)
    assert len(told) == 1
    steps.began = now + 30
    for second in range(30, 34):
        stalled.poll(now + second, 14)
    assert [(body["phase"], body["step"]) for _, body in told[1:]] == [("step", 14)], "it is in no phase"
    steps.waiting_since = now + 40
    for second in range(40, 44):
        stalled.poll(now + second, None)
    assert [(body["phase"], body["step"]) for _, body in told[2:]] == [("data", None)]
