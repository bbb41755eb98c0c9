"""The agent's state and decisions, pure: events of its producers and of the agent go in, blocks come out.

The agent is itself a producer: system samples, detected losses and the ends of ranks are its events, with a gapless seq
like any other producer's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import pack as struct_pack
from typing import Any, NamedTuple

from chiplog_agent.stats.claims import bounded_claim
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import (
    EVENT_BYTES_MAX,
    RECORD_BYTES_MAX,
    SPOOL_SYNC_BYTES,
    SPOOL_SYNC_INTERVAL_SLOW_S,
    TEXT_CHARS_MAX,
)
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.codes import EndCause, end_cause
from chiplog_schemas.model.events import (
    IDENTITY_FIELDS,
    EventKind,
    ProducerIdentity,
    encode,
    marked_entries,
    select_typed,
)
from chiplog_schemas.model.intervals import Intervals
from chiplog_schemas.storage.record import CorruptRange, Record, scan_records

_BLOCK_BYTES_MAX = RECORD_BYTES_MAX // 2  # a block is one record, and one more event of the largest size must fit
# Only the fields that the agent uses: a peer could fill memory with the rest.
_PEER_FIELDS = {name: IDENTITY_FIELDS[name] for name in marked_entries("agent")}  # safeguard: peer-fields-kept
_PATH_CHARS_MAX = 4_096  # PATH_MAX of Linux
_REASON_CHARS_MAX = 1_000  # one line
_LIGHT_BYTES = SPOOL_SYNC_BYTES // 16  # below this the agent need not hurry


class Origin(NamedTuple):
    """The process of a producer.

    pid: in this process's PID namespace, 0 if unknown or not visible from it. start: in clock ticks since boot, 0
    unless the process was seen alive. is_remote: it runs on another machine.
    """

    pid: int = 0
    start: int = 0
    is_remote: bool = False

    @property
    def can_sample(self) -> bool:
        """Return True if its statistics may be read under this PID."""
        return self.pid > 0 and self.start > 0 and not self.is_remote


@dataclass(slots=True)
class ProducerInfo:
    """The state of one producer of this node."""

    identity: dict[str, Any] = field(default_factory=dict)
    origin: Origin | None = None  # where its process runs; None until reported
    finished: bool = False  # the producer reported it
    failure: str = ""  # the exception that ended its code, if it reported one
    failure_cause: EndCause | None = None  # the cause that the producer reported with it
    next_seq: int = 0  # the number after the highest seq seen


class EventBatcher:
    """Collects events until a block is due.

    producer: 16 bytes, the agent's own. node: this host's name. now_us: wall time in µs.
    """

    def __init__(self, producer: bytes, node: str, pid: int, version: str, now_us: int) -> None:
        self.producer = producer
        self.node = node
        self.peers: dict[bytes, ProducerInfo] = {}
        self.damaged = 0  # ranges of bytes that were not records
        self.samples_dropped = 0
        self.n_received = 0  # events of producers
        self.n_lost = 0  # events declared lost
        self.sync_interval_s = SPOOL_SYNC_INTERVAL_SLOW_S  # how long an event waits for others; set by the daemon
        self.has_news = False  # whether an identity arrived; the reader resets it
        self._builder = BlockBuilder()
        self._closed: list[bytes] = []  # blocks that became full in the middle of a slice
        self._since: float | None = None  # arrival of the oldest pending event, monotonic s
        self._has_end = False  # of a producer, which may wait for its acknowledgement
        self._taken: dict[bytes, int] = {}  # producer -> next seq of the pending events
        self._own_seq = 0
        self._keys: dict[tuple[str, ...], bytes] = {}
        identity = ProducerIdentity(role="agent", node=node, pid=pid, started_at=now_us, sdk=version)
        self._say(EventKind.IDENTITY, now_us, 0.0, identity.to_map())

    # -- in --

    @property
    def has_capacity(self) -> bool:
        """Return True if the block under construction can hold another slice."""
        return self._builder.n_bytes < SPOOL_SYNC_BYTES

    @property
    def is_small(self) -> bool:
        """Return True if a block was started and is still small."""
        return self._since is not None and self._builder.n_bytes < _LIGHT_BYTES

    def register(self, producer: bytes, info: Mapping[str, Any]) -> None:
        """Note the info of a producer's HELLO."""
        self._peer(producer).identity.update(_select_identity(dict(info)))

    def add_slice(
        self, producer: bytes, first: int, last: int, payload: bytes | memoryview, now: float, now_us: int
    ) -> None:
        """Add a slice of a producer's journal, seqs first..last.

        Damage costs only the damaged seqs, which are declared lost.
        """
        peer = self._peer(producer)
        builder = self._builder
        damage = None
        seen = Intervals()
        for item in scan_records(payload):
            if isinstance(item, CorruptRange):
                damage = item
                self.damaged += 1
                continue
            seen.add(item.number, item.number)
            if builder.n_bytes > _BLOCK_BYTES_MAX or len(item.payload) > EVENT_BYTES_MAX:
                self._close_block(now_us)
            if len(item.payload) > EVENT_BYTES_MAX:
                self._refuse(producer, item, now_us)  # safeguard: large-event-declared
                continue
            event = builder.add(producer, item.number, item.payload)
            if event is not None and event[0] >= EventKind.IDENTITY:
                self._update_info(peer, event)
        if damage is not None:
            for missing_first, missing_last in seen.missing(first, last):
                self.declare_lost(producer, missing_first, missing_last, f"damaged on the way: {damage.reason}", now_us)
        self.n_received += last + 1 - first
        self._note_taken(producer, peer, last + 1, now)

    def add_record(self, producer: bytes, record: Record, now: float, now_us: int) -> None:
        """Add one record of an adopted journal."""
        peer = self._peer(producer)
        if len(record.payload) > EVENT_BYTES_MAX:
            self._refuse(producer, record, now_us)
            return
        event = self._builder.add(producer, record.number, record.payload)
        if event is not None and event[0] >= EventKind.IDENTITY:
            self._update_info(peer, event)
        self.n_received += 1
        self._note_taken(producer, peer, record.number + 1, now)

    def sample(self, device: str, names: Sequence[str], values: Sequence[float], ts_us: int, now: float) -> None:
        """Add a sample of one device: one float64 for each name."""
        key = tuple(names)
        keys = self._keys.get(key)
        if keys is None:
            keys = self._keys[key] = pack(list(key))
        packed = struct_pack(f"<{len(values)}d", *values)
        self._say(EventKind.SYSTEM, ts_us, now, device, keys, packed)

    def notice(self, kind: str, level: str, message: str, body: Mapping[str, Any], now: float, now_us: int) -> None:
        """Add a row to `events` about this node."""
        self._say(EventKind.NOTICE, now_us, now, kind, level, message[:TEXT_CHARS_MAX], dict(body))

    def declare_lost(self, producer: bytes, first: int, last: int, reason: str, now_us: int) -> None:
        """Declare seqs of a producer that can never arrive."""
        self.n_lost += last + 1 - first
        self._say(EventKind.LOST, now_us, 0.0, producer, first, last, reason)

    def report_exit(self, producer: bytes, produced: int, state: Mapping[str, Any], now: float, ts_us: int) -> None:
        """Report how a producer's process ended without reporting it itself. state: the STATE map. ts_us: when."""
        self._say(EventKind.PEER, ts_us, now, producer, {**state, "produced": produced})

    def locate(self, producer: bytes, origin: Origin, now: float, now_us: int) -> None:
        """Report where a producer's process runs: once, and again when more is known."""
        peer = self._peer(producer)
        if peer.origin is not None and (peer.origin == origin or not origin.start):
            return
        peer.origin = origin
        found = {"pid": origin.pid, "start": origin.start, "remote": origin.is_remote}
        # safeguard: agent-reports-own-node
        about = {"node": self.node} | {name: value for name, value in found.items() if value}
        self._say(EventKind.PEER, now_us, now, producer, about)

    def assign_gpus(self, producer: bytes, gpus: Sequence[str], now: float, now_us: int) -> None:
        """Report which GPUs a producer uses: all of them, after each change."""
        self._say(EventKind.PEER, now_us, now, producer, {"gpus": list(gpus)})

    def forget(self, producer: bytes) -> None:
        """Drop the state of a producer that is gone and delivered."""
        self.peers.pop(producer, None)

    # -- out --

    def is_flush_due(self, now: float) -> bool:
        """Return True if the pending events should become a block now."""
        if self._since is None:
            return False
        return now - self._since >= self.sync_interval_s or not self.has_capacity or self._has_end

    def wait_s(self, now: float, idle_s: float) -> float:
        """Return how long the loop may sleep."""
        return idle_s if self._since is None else min(idle_s, max(0.0, self._since + self.sync_interval_s - now))

    def build(self, now_us: int) -> tuple[list[bytes], dict[bytes, int]]:
        """Return (blocks, next seq by producer, to acknowledge once the blocks are synced)."""
        self._close_block(now_us)
        blocks, self._closed = self._closed, []
        taken, self._taken = self._taken, {}
        self._since = None
        self._has_end = False
        return blocks, taken

    def _close_block(self, now_us: int) -> None:
        """Close the block under construction, which would otherwise exceed the size of a record."""
        if self._builder.n_events:
            self._closed.append(self._builder.build(now_us))

    def _refuse(self, producer: bytes, record: Record, now_us: int) -> None:
        reason = f"event of {len(record.payload)} bytes exceeds the limit of {EVENT_BYTES_MAX}"
        self.declare_lost(producer, record.number, record.number, reason, now_us)

    def _say(self, kind: EventKind, ts_us: int, now: float, *fields: Any) -> None:
        # safeguard: block-size-bounded
        if self._builder.n_bytes > _BLOCK_BYTES_MAX:  # hostile bytes can cause very many of these events at once
            self._close_block(ts_us)
        self._builder.add(self.producer, self._own_seq, encode(kind, ts_us, *fields))
        self._own_seq += 1
        if self._since is None:
            self._since = now

    def _note_taken(self, producer: bytes, peer: ProducerInfo, next_seq: int, now: float) -> None:
        peer.next_seq = max(peer.next_seq, next_seq)
        self._taken[producer] = max(next_seq, self._taken.get(producer, 0))
        if self._since is None:
            self._since = now

    def _peer(self, producer: bytes) -> ProducerInfo:
        peer = self.peers.get(producer)
        if peer is None:
            peer = self.peers[producer] = ProducerInfo()
        return peer

    def _update_info(self, peer: ProducerInfo, event: list[Any]) -> None:
        if event[0] == EventKind.IDENTITY and len(event) > 2:
            peer.identity = _select_identity(event[2])
            self.has_news = True
        elif event[0] == EventKind.STATE:
            peer.finished = True
            self._has_end = True  # safeguard: end-of-rank-flushed-at-once
        elif event[0] == EventKind.NOTICE and event[2:3] == ["traceback"] and len(event) > 4:
            peer.failure = event[4][:_REASON_CHARS_MAX] if isinstance(event[4], str) else ""
            body = event[5] if len(event) > 5 and isinstance(event[5], dict) else {}
            peer.failure_cause = end_cause(body.get("cause"))


def _select_identity(identity: Any) -> dict[str, Any]:
    known = select_typed(identity, _PEER_FIELDS)
    if "gpu_claim" in known:
        known["gpu_claim"] = bounded_claim(known["gpu_claim"])
    return {name: value for name, value in known.items() if not isinstance(value, str) or len(value) <= _PATH_CHARS_MAX}
