"""Why a GPU is throttled, in words, and that Python and SQL know the same counters."""

import re
from pathlib import Path

import chiplog_schemas.sql
from chiplog_client.reads.system.throttling import _REASONS, THROTTLE_COUNTERS, throttle_text

VIEWS = (Path(chiplog_schemas.sql.__file__).parent / "analysis.sql").read_text(encoding="utf-8")


def test_the_counters_and_their_bits_are_those_of_the_views() -> None:
    [table] = re.findall(r"VIEW base\.throttle_reasons\(reason, bit, counter\) AS VALUES(.*?);", VIEWS, re.DOTALL)
    rows = re.findall(r"\('\w+', (\d+), (?:NULL|'([a-z_.]+)')\)", table)
    assert {name: int(bit) for bit, name in rows if name} == THROTTLE_COUNTERS
    assert {int(bit) for bit, _ in rows} == _REASONS.keys()
    [times] = re.findall(r"VIEW base\.throttle_times AS(.*?);", VIEWS, re.DOTALL)
    assert set(re.findall(r"'(hw\.[a-z_.]+)'", times)) == THROTTLE_COUNTERS.keys()


def test_an_idle_gpu_and_chosen_clocks_are_no_throttling() -> None:
    assert throttle_text(1 | 2 | 256) == ""
    assert throttle_text(4 | 64 | 1) == "SW power cap, HW thermal slowdown"
