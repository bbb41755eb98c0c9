"""How busy the cores are, beside work that the test does."""

import os
import time

from chiplog_agent.stats.host.cpu import CpuSource


def test_a_busy_core_shows_in_the_utilization() -> None:
    source = CpuSource()
    source.read()
    start = time.process_time()
    while time.process_time() - start < 0.3:
        pass
    [(device, names, (utilization, load))] = source.read()
    assert (device, names[0]) == ("", "system.cpu.utilization") and 0.0 < utilization <= 1.0
    assert 0.0 <= load < 100.0 * (os.cpu_count() or 1)
