"""The offset of the clock, in both units of the kernel."""

import pytest

from chiplog_agent.stats.host.clock import ClockSource, offset_of


def test_an_offset_is_in_seconds_whichever_unit_the_kernel_uses() -> None:
    assert offset_of(1_500_000, 0x2001, 0) == 0.0015
    assert offset_of(-1_500, 0x0001, 0) == -0.0015


def test_a_clock_that_nothing_synchronises_has_no_offset() -> None:
    assert offset_of(7, 0x0040, 5) is None
    assert offset_of(7, 0x2000, 5) is None


def test_an_offset_that_is_absent_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ClockSource()
    for found, missing in ((None, True), (0.001, False)):
        monkeypatch.setattr("chiplog_agent.stats.host.clock.offset_of", lambda *_: found)  # noqa: B023
        assert bool(source.read()) != missing == ("system.clock.offset is absent" in source.missing)


def test_this_hosts_offset_is_small_or_absent() -> None:
    for _, names, [offset_s] in ClockSource().read():
        assert names == ("system.clock.offset",) and abs(offset_s) <= 0.5  # the kernel slews no larger one
