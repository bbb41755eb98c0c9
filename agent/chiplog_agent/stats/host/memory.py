"""The host's memory and paging."""

import psutil

from chiplog_agent.stats.host.files import read_file
from chiplog_agent.stats.source import HOST_DEVICE, Reading, Source

_NAMES = ("system.memory.usage", "system.memory.limit", "system.paging.faults")


class MemorySource(Source):
    """The host's memory, whatever limits control groups have, and its page faults."""

    title = "memory"

    def read(self) -> list[Reading]:
        """Read /proc/meminfo and /proc/vmstat."""
        memory = psutil.virtual_memory()
        faults = float(read_file("/proc/vmstat").split(b"\npgfault ", 1)[1].split(b"\n", 1)[0])
        return [Reading(HOST_DEVICE, _NAMES, (float(memory.total - memory.available), float(memory.total), faults))]
