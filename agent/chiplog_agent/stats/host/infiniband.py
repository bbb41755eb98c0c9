"""What the ports of InfiniBand and RoCE adapters transfer.

Documentation/ABI/stable/sysfs-class-infiniband of the kernel: data counts words of 4 bytes; hw_counters are the
driver's, here those of mlx5.
"""

import os

from chiplog_agent.stats.host.files import read_file
from chiplog_agent.stats.source import AbsentError, Reading, Source
from chiplog_schemas.model.system_metrics import SLOW_S

_FOLDER = "/sys/class/infiniband"
_DEADLINE_S = 5.0  # an adapter whose firmware hangs
_WORD_BYTES = 4.0
_FILES = {  # name → the files whose sum it is, and the factor to its unit
    "rdma.port.io.receive": (("counters/port_rcv_data",), _WORD_BYTES),
    "rdma.port.io.transmit": (("counters/port_xmit_data",), _WORD_BYTES),
    "rdma.port.errors": (("counters/port_rcv_errors",), 1.0),
    "rdma.port.discards": (("counters/port_xmit_discards",), 1.0),
    "rdma.port.cnp": (("hw_counters/np_cnp_sent", "hw_counters/rp_cnp_handled"), 1.0),
    "rdma.port.ecn": (("hw_counters/np_ecn_marked_roce_packets",), 1.0),
}


class InfinibandSource(Source):
    """Counters of each port, as the device `ib:ADAPTER/PORT`."""

    title = "infiniband"
    period_s = SLOW_S
    deadline_s = _DEADLINE_S

    def __init__(self, folder: str = _FOLDER) -> None:
        self._folder = folder

    def read(self) -> list[Reading]:
        """Read /sys/class/infiniband. Raises AbsentError without adapters."""
        try:
            adapters = sorted(os.listdir(self._folder))
        except OSError as error:
            raise AbsentError(f"rdma.* is absent: no adapter in {self._folder}") from error
        return [
            Reading(f"ib:{adapter}/{port}", tuple(values), tuple(values.values()))
            for adapter in adapters
            for port in _ports(f"{self._folder}/{adapter}/ports")
            if (values := self._port(f"{self._folder}/{adapter}/ports/{port}"))
        ]

    def _port(self, folder: str) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, (files, factor) in _FILES.items():
            try:
                values[name] = factor * sum(int(read_file(f"{folder}/{file}")) for file in files)
            except (OSError, ValueError):
                continue  # another driver's adapter has other counters, or says N/A
        return values


def _ports(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []  # an adapter that is just taken away
