"""What ranks use of GPUs: memory and time of the processes of their trees, as NVML lists them on each device."""

import math
import time
from collections.abc import Collection

from chiplog_agent.stats.gpu.processes import DeviceUse
from chiplog_agent.stats.rank.process_tree import ProcessStats
from chiplog_agent.stats.source import Reading, Source
from chiplog_schemas.model.system_metrics import GPU_PROCESSES_S

MEMORY_NAME = "process.gpu.memory.usage"
SHARES_NAME = "process.gpu.utilization"
_FRESH_S = 2.5 * GPU_PROCESSES_S  # what a device that hangs or is lost reported before is no longer true


class RankGpuUse(Source):
    """Sums what devices report over the tree of each rank. The device is `pid:<PID>`.

    A rank without a process on any GPU is absent, and so is memory that the driver does not know for one of its
    processes. A process that used no time adds 0.
    """

    title = "GPU use of ranks"
    period_s = GPU_PROCESSES_S

    def __init__(self, processes: ProcessStats) -> None:
        self._processes = processes
        self._uses: dict[str, tuple[float, DeviceUse]] = {}
        self._read_at = math.inf  # monotonic

    def put(self, device: str, use: DeviceUse, now: float) -> None:
        """Set the processes on a device. now: monotonic, s."""
        self._uses[device] = now, use

    def drop(self, device: str) -> None:
        """Forget a device."""
        self._uses.pop(device, None)

    def read(self) -> list[Reading]:
        """Return the values of each rank that uses a GPU."""
        now = time.monotonic()
        oldest = min(now - _FRESH_S, self._read_at)  # by a long interval of the agent, all since the last reading
        self._read_at = now
        uses = [use for at, use in self._uses.values() if at >= oldest and use.memory]
        return [
            reading for pid, tree in self._processes.trees().items() if (reading := _sum(pid, tree, uses)) is not None
        ]


def _sum(rank: int, tree: Collection[int], uses: Collection[DeviceUse]) -> Reading | None:
    memory: list[int] = []
    shares: list[float | None] = []
    for use in uses:
        for pid in use.memory.keys() & tree:
            memory.append(use.memory[pid])
            shares.append(None if use.shares is None else use.shares.get(pid, 0.0))
    known = [share for share in shares if share is not None]
    values = {}
    if memory and min(memory) >= 0:  # safeguard: unknown-gpu-memory-absent
        values[MEMORY_NAME] = float(sum(memory))
    if known and len(known) == len(shares):
        values[SHARES_NAME] = sum(known)
    return Reading(f"pid:{rank}", tuple(values), tuple(values.values())) if values else None
