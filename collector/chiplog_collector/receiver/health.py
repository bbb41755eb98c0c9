"""The collector's own health: values for `system` each 10 s, and what a monitoring system asks for."""

import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from chiplog_schemas._version import __version__
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.codes import RefusalReason
from chiplog_schemas.model.events import EventKind, ProducerIdentity, encode
from chiplog_schemas.model.exposed import Exposed, Health
from chiplog_schemas.model.system_metrics import PIPELINE_DEVICE, PIPELINE_PERIOD_S
from chiplog_schemas.process.backlog import Backlog
from chiplog_schemas.process.pulse import Pulse

_DOUBLE = struct.Struct("<d")
SILENT_KEPT_S = 3600.0  # an agent that is silent for longer may have ended for good
APPLY_LAG_MAX_S = 30.0  # a collector whose SQL is this far behind its log is not ready


@dataclass(slots=True)
class Counts:
    """What the collector has now, or counts from its start on."""

    log_bytes: int = 0
    disk_free_bytes: int = 0
    quarantined: int = 0
    refused: Mapping[RefusalReason, int] = field(default_factory=dict)
    unapplied: int = 0
    duplicates: int = 0
    connected: int = 0
    index_restarts: int = 0


class CollectorHealth:
    """What is known of the collector. `turn` is called by the receiver's loop, the rest also by other threads.

    As a producer of its own it has a new ID at each start, as an agent does. node: the name of its host.
    """

    def __init__(self, node: str, now: float, *, follows_index: bool) -> None:
        self._node = node
        self._follows_index = follows_index
        self._backlog = Backlog(now)
        self._pulse = Pulse("the receiver's loop", PIPELINE_PERIOD_S, now)
        self._refusal = ""
        self._exposed: Exposed | None = None
        self._producer = os.urandom(16)
        self._seq = 0
        self._silent: dict[bytes, float] = {}  # agents that left without goodbye, and when

    def agent_came(self, sender: bytes) -> None:
        """Note that an agent has connected."""
        self._silent.pop(sender, None)

    def agent_fell_silent(self, sender: bytes, now: float) -> None:
        """Note that an agent left without goodbye."""
        self._silent[sender] = now

    def _count_silent(self, now: float) -> int:
        self._silent = {sender: since for sender, since in self._silent.items() if now - since < SILENT_KEPT_S}
        return len(self._silent)

    def turn(self, synced: int, applied: int, refusal: str, now: float) -> bool:
        """Note one turn of the loop. Return True if the values are due.

        synced, applied: the numbers after the last record that is in the log, and that SQL shows. refusal: why the log
        takes no events now; "" if it does.
        """
        self._refusal = refusal
        if self._follows_index:
            self._backlog.note(synced, applied, now)
        return self._pulse.turn(now)

    def read(self, counts: Counts, now: float) -> dict[str, float]:
        """Return the values by name. The next are due one period later."""
        self._pulse.note_read(now)
        values = {
            "chiplog.collector.log": float(counts.log_bytes),
            "chiplog.collector.disk_free": float(counts.disk_free_bytes),
            "chiplog.collector.apply_lag": self._backlog.age_s(now),
            "chiplog.collector.quarantined": float(counts.quarantined),
            **{f"chiplog.collector.refused.{reason}": float(counts.refused.get(reason, 0)) for reason in RefusalReason},
            "chiplog.collector.unapplied": float(counts.unapplied),
            "chiplog.collector.duplicates": float(counts.duplicates),
            "chiplog.collector.agents.connected": float(counts.connected),
            "chiplog.collector.agents.silent": float(self._count_silent(now)),
            "chiplog.collector.index_restarts": float(counts.index_restarts),
            "chiplog.collector.cpu_time": time.process_time(),
        }
        self._exposed = Exposed({"node": self._node}, tuple(values), tuple(values.values()))
        return values

    def block(self, values: dict[str, float], now_us: int) -> bytes:
        """Return a block with the values as a sample, to append to the log."""
        builder = BlockBuilder()
        if self._seq == 0:
            identity = ProducerIdentity(
                role="collector", node=self._node, pid=os.getpid(), started_at=now_us, sdk=__version__
            )
            self._add(builder, encode(EventKind.IDENTITY, now_us, identity.to_map()))
        packed = b"".join(map(_DOUBLE.pack, values.values()))
        self._add(builder, encode(EventKind.SYSTEM, now_us, PIPELINE_DEVICE, pack(list(values)), packed))
        return builder.build(now_us)

    def _add(self, builder: BlockBuilder, payload: bytes) -> None:
        builder.add(self._producer, self._seq, payload)
        self._seq += 1

    def health(self) -> Health:
        """Return what a monitoring system asks for."""
        return Health(self._collect, self._pulse.not_alive, self._not_ready)

    def _collect(self) -> list[Exposed]:
        return [self._exposed] if self._exposed is not None else []

    def _not_ready(self) -> str:
        lag_s = self._backlog.age_s(time.monotonic())
        if self._refusal:
            return self._refusal
        return f"SQL is {lag_s:.0f} s behind the log" if lag_s > APPLY_LAG_MAX_S else ""
