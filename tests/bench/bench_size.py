"""Bytes per point at ten keys an event and random values: the DuckDB file after compaction, the collector's log."""

import os
import tempfile
from pathlib import Path

import numpy as np

from chiplog_collector.index.opening import rebuild_into
from chiplog_collector.maintenance import compact
from chiplog_collector.receiver.commit import CommitBuilder
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as encode_record
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.bench.figure import Figure

RANKS = 8
STEPS = 50_000
KEYS = 10
EVENTS_PER_BLOCK = RANKS * 10  # what an agent with fast ranks gathers in a sync interval


def measure() -> list[Figure]:
    keys = pack([f"train/metric_{i}" for i in range(KEYS)])
    producers = [os.urandom(16) for _ in range(RANKS)]
    random = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as root:
        place = paths_for_root(Path(root))
        place.collector.mkdir()
        log = SegmentLog(place.collector / "log", os.urandom(16))
        intake, builder = CommitBuilder({}), BlockBuilder()
        ts = 1_790_000_000_000_000
        for step in range(STEPS):
            ts += int(random.normal(5_000, 200))
            for producer in producers:
                jitter = int(random.integers(0, 500))
                payload = encode(EventKind.METRICS, ts + jitter, step, keys, random.random(KEYS).tobytes())
                builder.add(producer, step, payload)
            if builder.n_events >= EVENTS_PER_BLOCK:
                number = log.next_number
                for entry in intake.add_slice(
                    bytes(16), number, number, encode_record(Kind.BLOCK, number, builder.build(ts))
                ):
                    assert entry.record is not None
                    log.append_record(entry.record)
                receipt = intake.receipt_record(ts)
                log.append(receipt.kind, receipt.payload)
                intake.committed()
                log.commit(sync=False)
        points = RANKS * STEPS * KEYS
        log_bytes = log.size_bytes
        log.close()
        rebuild_into(place, place.index, log.next_number, lambda number: None).database.close()
        before = place.index.stat().st_size
        compact(place)
        after = place.index.stat().st_size
    raw = f"{points:,} points; a bare float64 is 8"
    return [
        Figure(
            "DuckDB file after compaction",
            after / points,
            "bytes/point",
            at_most=12,
            yardstick=f"{raw}; before {before / points:.1f}",
        ),
        Figure("collector's log", log_bytes / points, "bytes/point", at_most=14, yardstick=raw),
    ]
