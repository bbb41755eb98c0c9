"""What the network interfaces transfer."""

import psutil

from chiplog_agent.stats.host.files import PhysicalDevices
from chiplog_agent.stats.source import HOST_DEVICE, Reading, Source

_NAMES = (
    "system.network.io.receive",
    "system.network.io.transmit",
    "system.network.errors",
    "system.network.dropped",
)


class NetworkSource(Source):
    """Counters of the physical interfaces: the sum."""

    title = "network"

    def __init__(self) -> None:
        self._interfaces = PhysicalDevices("/sys/class/net")

    def read(self) -> list[Reading]:
        """Read /proc/net/dev."""
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        chosen = [counters[name] for name in self._interfaces.choose(counters)]
        if not chosen:
            return []
        values = [
            (float(of.bytes_recv), float(of.bytes_sent), float(of.errin + of.errout), float(of.dropin + of.dropout))
            for of in chosen
        ]
        return [Reading(HOST_DEVICE, _NAMES, tuple(map(sum, zip(*values, strict=True))))]
