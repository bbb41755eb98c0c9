"""The pulse of a daemon's loop."""

import time

from chiplog_schemas.process.pulse import Pulse


def test_values_are_due_each_period_and_not_at_once_after_a_late_turn() -> None:
    pulse = Pulse("the loop", 10.0, 100.0)
    assert [pulse.turn(now) for now in (109.9, 110.0)] == [False, True]
    pulse.note_read(110.0)
    assert [pulse.turn(now) for now in (119.9, 145.0)] == [False, True]
    pulse.note_read(145.0)
    assert pulse.turn(145.0), "one more, and then each period again"
    pulse.note_read(145.0)
    assert not pulse.turn(154.9)


def test_a_loop_that_does_not_turn_is_not_alive() -> None:
    pulse = Pulse("the loop", 10.0, time.monotonic() - 31)
    assert pulse.not_alive() == "the loop has not turned for 31 s"
    pulse.turn(time.monotonic())
    assert pulse.not_alive() == ""
