"""A collector's log written by hand: producers and their events, blocks, receipts, and the resulting database."""

import itertools
from typing import Any

from chiplog_collector.index.apply.applier import Applier
from chiplog_collector.index.apply.state import State
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.storage.record import Kind, Record, scan_records
from chiplog_schemas.storage.record import encode as frame

LOG_ID = b"L" * 16
START_US = 1_795_000_000_000_000  # 2026-11-18


class Rank:
    """A producer: numbers its events, and keeps them until a test sends them. start_us: the time of its first event."""

    def __init__(self, number: int, label: str | None = None, *, start_us: int = START_US, **identity: Any) -> None:
        self.uuid = bytes([number]) * 16
        self.label = label or f"rank{number}"
        self.start_us = start_us
        self.identity = {
            "role": "rank",
            "run_id": "r",
            "label": self.label,
            "primary": number == 0,
            "rank": number,
            "launch": "launch",
            "restart": 0,
            "node": "node-a",
            "pid": 100 + number,
            "started_at": start_us,
        } | identity
        self.events: list[bytes] = []
        self.say(EventKind.IDENTITY, self.identity)

    def say(self, kind: EventKind, *fields: Any, ts: int | None = None) -> int:
        """Add an event and return its seq."""
        seq = len(self.events)
        self.events.append(encode(kind, self.start_us + seq if ts is None else ts, *fields))
        return seq

    def become(self, **identity: Any) -> int:
        """Add another identity."""
        self.identity |= identity
        return self.say(EventKind.IDENTITY, dict(self.identity))

    def log(self, step: int, **values: float) -> int:
        """Log numbers."""
        import struct

        return self.say(EventKind.METRICS, step, pack(list(values)), struct.pack(f"<{len(values)}d", *values.values()))


def block_of(*parts: tuple[Rank, int, int]) -> bytes:
    """Return a block of seqs first..last of some producers."""
    builder = BlockBuilder()
    for rank, first, last in parts:
        for seq in range(first, last + 1):
            builder.add(rank.uuid, seq, rank.events[seq])
    return builder.build(START_US)


def whole(*ranks: Rank) -> bytes:
    """Return a block of all events of some producers."""
    return block_of(*((rank, 0, len(rank.events) - 1) for rank in ranks))


def receipt(number: int, sender: bytes = b"S" * 16, nodes: list[str] | None = None) -> bytes:
    return pack([START_US + 1_000_000 + number, [[sender, 0, number, 1, nodes]]])


def records(*payloads: bytes | tuple[int, bytes] | tuple[int, bytes, int]) -> list[Record]:
    """Frame payloads (blocks, or with their kind and version), with a receipt after each."""
    numbers = itertools.count()
    data = b""
    for payload in payloads:
        kind, content, *version = payload if isinstance(payload, tuple) else (Kind.BLOCK, payload)
        data += frame(kind, next(numbers), content, *version)
        number = next(numbers)
        data += frame(Kind.RECEIPT, number, receipt(number))
    found = list(scan_records(data))
    assert all(isinstance(record, Record) for record in found)
    return found


def apply(*payloads: Any) -> Applier:
    """Apply payloads to an empty state, purely."""
    applier = Applier(State())
    for record in records(*payloads):
        applier.apply(record, record.number)
    return applier


def quarantined(applier: Applier) -> list[str]:
    """Return the reasons of what was put into quarantine."""
    return [row[2] for row in applier.batch.rows.get("quarantine", [])]


VIEWS = (
    "runs",
    "labels",
    "metrics",
    "texts",
    "histograms",
    "media",
    "artifacts",
    "artifact_files",
    "system",
    "system_samples",
    "console",
    "config",
    "summary",
    "run_summary",
    "keys",
    "metric_definitions",
    "run_tags",
    "events",
    "completeness",
    "run_sizes",
    "phases",
    "phase_times",
    "files",
    "step_skew",
    "stragglers",
    "straggler_windows",
    "data_wait",
    "goodput",
    "throttle_cost",
    "gpu_events",
    "rank_progress",
    "first_failure",
    "restarts",
    "saved_views",
)


def contents_of(sql: Any, view: str) -> list[str]:
    """Return a view's rows as sorted texts: NaN is equal to NaN that way."""
    return sorted(map(repr, sql(f"SELECT * FROM {view}")))
