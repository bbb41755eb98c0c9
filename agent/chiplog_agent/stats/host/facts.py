"""What a node is, as far as it rarely changes: CPU, memory, kernel and network interfaces."""

import os
from collections.abc import Callable
from typing import Any

import psutil

from chiplog_agent.stats.host.files import PhysicalDevices, read_file
from chiplog_agent.stats.source import Reading, Source

_NICS = "/sys/class/net"
_NUMA = "/sys/devices/system/node"
_PERIOD_S = 600.0  # an interface may change its speed
_DEADLINE_S = 10.0  # an interface that is being reset answers late
_BITS_PER_MBIT = 1_000_000


class HostFactsSource(Source):
    """Reads the facts of the host, and posts them as `["facts", map]`. It has no metrics."""

    title = "facts of the host"
    period_s = _PERIOD_S
    deadline_s = _DEADLINE_S

    def __init__(self, post: Callable[[list[Any]], None]) -> None:
        self._post = post

    def read(self) -> list[Reading]:
        """Post the facts."""
        self._post(["facts", host_facts()])
        return []


def host_facts(nics: str = _NICS, cpuinfo: str = "/proc/cpuinfo") -> dict[str, Any]:
    """Return what can be read. nics, cpuinfo: where to read."""
    kernel = os.uname()
    facts: dict[str, Any] = {
        "cpu": {"threads": os.cpu_count()},
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": kernel.release,
        "architecture": kernel.machine,
        "nics": _nics(nics),
    }
    if (model := _cpu_model(cpuinfo)) is not None:
        facts["cpu"]["model"] = model
    if (cores := psutil.cpu_count(logical=False)) is not None:
        facts["cpu"]["cores"] = cores
    if os.path.isdir(_NUMA):
        facts["numa_nodes"] = sum(name[:4] == "node" and name[4:].isdigit() for name in os.listdir(_NUMA))
    return facts


def numa_node(device: str) -> int | None:
    """Return the NUMA node of a device by its folder in /sys; None if it has none."""
    node = _number(f"{device}/numa_node")
    return None if node is None or node < 0 else node


def _cpu_model(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):  # the file has no such line on ARM
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # a /proc that hides it
    return None


def _nics(folder: str) -> list[dict[str, Any]]:
    try:
        names = PhysicalDevices(folder).choose(os.listdir(folder))
    except OSError:
        return []
    found = []
    for name in names:
        nic: dict[str, Any] = {"name": name}
        speed = _number(f"{folder}/{name}/speed")
        if speed is not None and speed > 0:  # -1 while there is no link
            nic["bits_per_s"] = speed * _BITS_PER_MBIT
        if (node := numa_node(f"{folder}/{name}/device")) is not None:
            nic["numa_node"] = node
        found.append(nic)
    return found


def _number(path: str) -> int | None:
    try:
        return int(read_file(path))
    except (OSError, ValueError):
        return None
