"""The list of the host's sources."""

from chiplog_agent.stats.host.cpu import CpuSource
from chiplog_agent.stats.host.disks import DiskSource
from chiplog_agent.stats.host.file_systems import RootFileSystemSource
from chiplog_agent.stats.host.memory import MemorySource
from chiplog_agent.stats.host.network import NetworkSource
from chiplog_agent.stats.host.pressure import PressureSource
from chiplog_agent.stats.source import Source


def host_sources() -> list[Source]:
    """Return the sources of this host, in the order of SYSTEM_METRICS."""
    return [CpuSource(), MemorySource(), DiskSource(), RootFileSystemSource(), NetworkSource(), PressureSource()]
