"""What the network interfaces transfer: all together each time, and each for itself at times."""

import psutil

from chiplog_agent.stats.host.files import PhysicalDevices
from chiplog_agent.stats.source import HOST_DEVICE, Reading, Source
from chiplog_schemas.model.system_metrics import SLOW_S

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
        values = list(self._read().values())
        return [Reading(HOST_DEVICE, _NAMES, tuple(map(sum, zip(*values, strict=True))))] if values else []

    def _read(self) -> dict[str, tuple[float, ...]]:
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        chosen = {name: counters[name] for name in self._interfaces.choose(counters)}
        return {
            name: (
                float(of.bytes_recv),
                float(of.bytes_sent),
                float(of.errin + of.errout),
                float(of.dropin + of.dropout),
            )
            for name, of in chosen.items()
        }


class EachInterfaceSource(NetworkSource):
    """The same of each physical interface, as the device `nic:NAME`."""

    title = "each interface"
    period_s = SLOW_S

    def read(self) -> list[Reading]:
        """Read /proc/net/dev."""
        return [Reading(f"nic:{name}", _NAMES, values) for name, values in self._read().items()]
