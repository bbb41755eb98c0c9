"""Small files of /proc and /sys, and which block devices and network interfaces are hardware."""

import os
from collections.abc import Iterable

_READ_BYTES_MAX = 65_536  # /proc/vmstat has about 5 KB; one read returns all of it


def read_file(path: str) -> bytes:
    """Return the content of a small file of the kernel. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _READ_BYTES_MAX)
    finally:
        os.close(descriptor)


class PhysicalDevices:
    """Selects the names with a device behind them, and checks again only when the set of names changes.

    Disks and interfaces built on others (dm, md, bonds, bridges, loop) are left out, because they would count twice.
    If none has a device, as in a container, all but the loopback count.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._names: frozenset[str] = frozenset()
        self._chosen: list[str] = []

    def choose(self, counters: Iterable[str]) -> list[str]:
        """Return the names that count, sorted."""
        names = frozenset(counters)
        if names != self._names:
            self._names = names
            real = [name for name in names if os.path.exists(f"{self._folder}/{name}/device")]
            whole = [name for name in names if os.path.exists(f"{self._folder}/{name}") and name != "lo"]
            self._chosen = sorted(real or whole)
        return self._chosen
