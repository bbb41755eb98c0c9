"""How full the file systems are."""

import os

from chiplog_agent.stats.source import HOST_DEVICE, Reading, Source

_NAMES = ("system.filesystem.usage",)


class RootFileSystemSource(Source):
    """The root file system, which cannot be remote in practice."""

    title = "file system /"

    def read(self) -> list[Reading]:
        """Ask the kernel for its blocks."""
        blocks = os.statvfs("/")
        return [Reading(HOST_DEVICE, _NAMES, (float((blocks.f_blocks - blocks.f_bfree) * blocks.f_frsize),))]
