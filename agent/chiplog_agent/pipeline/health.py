"""The agent's own health: values for `system` each 10 s, and what a monitoring system asks for."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from chiplog_agent.stats.frames import GPU_DEVICES, RANK_DEVICE
from chiplog_schemas.model.codes import RefusalReason
from chiplog_schemas.model.exposed import Exposed, Health
from chiplog_schemas.model.system_metrics import AGENT_REFUSALS, PIPELINE_DEVICE, PIPELINE_PERIOD_S
from chiplog_schemas.process.backlog import Backlog
from chiplog_schemas.process.procfs import own_ticks, read_proc_stat, resident_bytes
from chiplog_schemas.process.pulse import Pulse

GPUS_LOST, GPUS_STALE, FATAL_XIDS = OF_GPUS = (  # of the node in `system`, of each GPU in /metrics
    "chiplog.agent.gpus_lost",
    "chiplog.agent.gpus_stale",
    "chiplog.agent.fatal_xids",
)
DELIVERED_MAX_S = 30.0  # an agent that waits for its collector for this long is not ready
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Counts:
    """What the agent counts from its start on, and what it has now: read at each turn that needs it."""

    spool_bytes: int = 0
    received: int = 0
    lost: int = 0
    refused: int = 0  # by the collector
    refusals: Mapping[RefusalReason, int] = field(default_factory=dict)  # of what ranks sent
    duplicates: int = 0
    damaged: int = 0
    ranks: int = 0
    journals: int = 0
    credit_bytes: int = 0
    late_s: float = 0.0
    samples_dropped: int = 0
    gpus: int = 0  # that are sampled
    gpus_released: bool = False
    gpus_lost: int = 0
    gpus_stale: int = 0
    fatal_xids: int = 0
    sampler_pid: int | None = None
    samples_host: bool = True  # whether this agent does, of those on its node
    sdk: Mapping[str, float] = field(default_factory=dict)  # of all ranks together


class AgentHealth:
    """What is known of the agent. `turn` is called by its loop, the rest also by other threads.

    former: what the spool had before, as of `Backlog`.
    """

    def __init__(self, node: str, now: float, former: Iterable[tuple[int, float]] = ()) -> None:
        self._node = node
        self._backlog = Backlog(now, former)
        self.pulse = Pulse("the agent's loop", PIPELINE_PERIOD_S, now)
        self._is_open = False
        self._samples: Exposed | None = None
        self._sampler_s = 0.0  # CPU time of the sampler's processes that have ended
        self._sampler: tuple[int, float] = (0, 0.0)  # PID, CPU time

    def turn(self, spooled: int, acknowledged: int, *, is_open: bool, now: float) -> bool:
        """Note one turn of the loop. Return True if the values are due.

        spooled, acknowledged: the numbers after the last block in the spool, and after the last one that the collector
        has. is_open: whether the collector answers.
        """
        self._is_open = is_open
        self._backlog.note(spooled, acknowledged, now, is_reached=is_open)
        return self.pulse.turn(now)

    def read(self, counts: Counts, now: float) -> tuple[str, tuple[str, ...], tuple[float, ...]]:
        """Return a sample: device, names and values. The next is due one period later."""
        self.pulse.note_read(now)
        cpu_s, memory = self._own_use(counts.sampler_pid)
        values = {
            "chiplog.agent.spool": counts.spool_bytes,
            "chiplog.agent.spool_oldest": self._backlog.age_s(now),
            "chiplog.agent.acknowledgement": self._backlog.take_slowest_s(),
            "chiplog.agent.events.received": counts.received,
            "chiplog.agent.events.lost": counts.lost,
            "chiplog.agent.events.refused": counts.refused,
            **{f"chiplog.agent.refused.{reason}": counts.refusals.get(reason, 0) for reason in AGENT_REFUSALS},
            "chiplog.agent.duplicates": counts.duplicates,
            "chiplog.agent.damaged": counts.damaged,
            "chiplog.agent.ranks": counts.ranks,
            "chiplog.agent.journals_waiting": counts.journals,
            "chiplog.agent.credit": counts.credit_bytes,
            "chiplog.agent.sample_late": counts.late_s,
            "chiplog.agent.samples_dropped": counts.samples_dropped,
            "chiplog.agent.gpus": counts.gpus,
            "chiplog.agent.gpus_released": counts.gpus_released,
            GPUS_LOST: counts.gpus_lost,
            GPUS_STALE: counts.gpus_stale,
            FATAL_XIDS: counts.fatal_xids,
            "chiplog.agent.cpu_time": cpu_s,
            "chiplog.agent.memory": memory,
        }
        shown = {name: float(value) for name, value in values.items() if name not in OF_GPUS}
        self._samples = Exposed({"node": self._node}, tuple(shown), tuple(shown.values()))
        values |= counts.sdk  # in /metrics each rank has its own
        # safeguard: agents-of-a-node-apart
        device = PIPELINE_DEVICE if counts.samples_host else f"{PIPELINE_DEVICE}:{os.getpid()}"
        return device, tuple(values), tuple(map(float, values.values()))

    def _own_use(self, sampler: int | None) -> tuple[float, float]:
        """Return CPU time in s, and memory in bytes, of the agent and its sampler process."""
        cpu_s, memory = 0.0, 0.0
        for pid in {os.getpid(), sampler} - {None}:
            fields = read_proc_stat(pid or 0)
            if fields:
                of_s = own_ticks(fields) / _TICKS_PER_S
                memory += resident_bytes(pid or 0)
                if pid == sampler and pid != os.getpid():
                    if pid != self._sampler[0]:
                        self._sampler_s += self._sampler[1]
                    self._sampler = (pid or 0, of_s)
                else:
                    cpu_s = of_s
        return cpu_s + self._sampler_s + self._sampler[1], memory

    def not_ready(self) -> str:
        """Return why no event reaches the collector's stable storage; "" if they do."""
        waited_s = time.monotonic() - self._backlog.done_at
        if waited_s <= DELIVERED_MAX_S:
            return ""
        why = "no event has reached its stable storage" if self._is_open else "it does not answer"
        return f"the collector takes no events: {why} for {waited_s:.0f} s"

    def exposed(self) -> list[Exposed]:
        """Return the newest values; none in the first 10 s."""
        return [self._samples] if self._samples is not None else []


def health_of(agent: AgentHealth, *samples: Callable[[], Iterable[Exposed]]) -> Health:
    """Return what a monitoring system asks for. samples: of the node's devices, with labels that name them."""
    return Health(
        lambda: [*agent.exposed(), *(of for read in samples for of in read())], agent.pulse.not_alive, agent.not_ready
    )


def device_labels(node: str, device: str) -> dict[str, str]:
    """Return the labels that name a device. A rank's process is named by its run and rank alone."""
    kind = "uuid" if device.startswith(GPU_DEVICES) else "device"
    is_rank = device.startswith(RANK_DEVICE)
    return {"node": node, **({kind: device} if device and not is_rank else {})}
