"""The list of the host's sources."""

import os

from chiplog_agent.stats.host.clock import ClockSource
from chiplog_agent.stats.host.cpu import CpuSource
from chiplog_agent.stats.host.disks import DiskSource, EachDiskSource
from chiplog_agent.stats.host.file_systems import RootFileSystemSource, file_system_sources
from chiplog_agent.stats.host.infiniband import InfinibandSource
from chiplog_agent.stats.host.memory import MemorySource
from chiplog_agent.stats.host.network import EachInterfaceSource, NetworkSource
from chiplog_agent.stats.host.pressure import PressureSource
from chiplog_agent.stats.source import Source


def host_sources() -> list[Source]:
    """Return the sources of this host, in the order of SYSTEM_METRICS; those that are read at times at the end."""
    often = [CpuSource(), MemorySource(), DiskSource(), RootFileSystemSource(), NetworkSource(), PressureSource()]
    at_times = [ClockSource(), EachDiskSource(), EachInterfaceSource(), *file_system_sources(os.environ)]
    return [*often, *at_times, InfinibandSource()]
