"""What the disks transfer."""

import psutil

from chiplog_agent.stats.host.files import PhysicalDevices
from chiplog_agent.stats.source import HOST_DEVICE, Reading, Source

_NAMES = ("system.disk.io.read", "system.disk.io.write")


class DiskSource(Source):
    """Bytes that the physical disks have read and written: the sum."""

    title = "disks"

    def __init__(self) -> None:
        self._disks = PhysicalDevices("/sys/block")

    def read(self) -> list[Reading]:
        """Read /proc/diskstats."""
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False)
        chosen = self._disks.choose(counters)
        if not chosen:
            return []
        values = [(float(counters[name].read_bytes), float(counters[name].write_bytes)) for name in chosen]
        return [Reading(HOST_DEVICE, _NAMES, tuple(map(sum, zip(*values, strict=True))))]
