"""Pressure stall information, where the kernel has it."""

from pathlib import Path

import pytest

from chiplog_agent.stats.host.pressure import RESOURCES, PressureSource, stalled_s
from chiplog_agent.stats.source import AbsentError


def test_pressure_is_sampled_exactly_where_the_kernel_has_it() -> None:
    try:
        before = [stalled_s(Path(f"/proc/pressure/{resource}").read_bytes()) for resource in RESOURCES]
    except OSError:
        with pytest.raises(AbsentError):
            PressureSource().read()
        return
    [(_, names, values)] = PressureSource().read()
    assert names == tuple(f"system.pressure.{resource}" for resource in RESOURCES)
    assert all(low <= value <= low + 10 for low, value in zip(before, values, strict=True))


def test_the_total_of_the_first_line_is_in_seconds() -> None:
    some = b"some avg10=0.00 avg60=0.12 avg300=0.05 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    assert stalled_s(some) == 1.5
