"""How busy the host's cores are."""

import os

import psutil

from chiplog_agent.stats.source import HOST_DEVICE, Reading, Source

_NAMES = ("system.cpu.utilization", "system.cpu.load_average.1m")


class CpuSource(Source):
    """The busy share of all cores since the reading before, and the load average."""

    title = "cpu"

    def __init__(self) -> None:
        self._times = (0.0, 0.0)  # all, idle
        self._utilization = 0.0

    def read(self) -> list[Reading]:
        """Read /proc/stat and the load."""
        times = psutil.cpu_times()
        # guest time is already within user time, proc(5)
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        elapsed = total - self._times[0]
        if elapsed > 0.0:  # zero between two calls within one clock tick: the last value remains valid
            self._utilization = min(max(1.0 - (idle - self._times[1]) / elapsed, 0.0), 1.0)
            self._times = (total, idle)
        return [Reading(HOST_DEVICE, _NAMES, (self._utilization, os.getloadavg()[0]))]
