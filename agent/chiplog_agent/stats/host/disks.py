"""What the disks transfer: all together each time, and each for itself at times."""

import psutil

from chiplog_agent.stats.host.files import PhysicalDevices
from chiplog_agent.stats.source import HOST_DEVICE, Reading, Source
from chiplog_schemas.model.system_metrics import SLOW_S

_NAMES = ("system.disk.io.read", "system.disk.io.write")


class DiskSource(Source):
    """Bytes that the physical disks have read and written: the sum."""

    title = "disks"

    def __init__(self) -> None:
        self._disks = PhysicalDevices("/sys/block")

    def read(self) -> list[Reading]:
        """Read /proc/diskstats."""
        values = list(self._read().values())
        return [Reading(HOST_DEVICE, _NAMES, tuple(map(sum, zip(*values, strict=True))))] if values else []

    def _read(self) -> dict[str, tuple[float, ...]]:
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False)
        chosen = self._disks.choose(counters)
        return {name: (float(counters[name].read_bytes), float(counters[name].write_bytes)) for name in chosen}


class EachDiskSource(DiskSource):
    """The same of each physical disk, as the device `disk:NAME`."""

    title = "each disk"
    period_s = SLOW_S

    def read(self) -> list[Reading]:
        """Read /proc/diskstats."""
        return [Reading(f"disk:{name}", _NAMES, values) for name, values in self._read().items()]
