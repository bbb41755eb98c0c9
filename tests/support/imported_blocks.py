"""Blocks of an import, written by hand."""

from typing import Any

from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind, encode
from tests.support.collector_log import START_US, Rank

PRODUCER = b"imported-process"


def head(run: str = "r", label: str = "rank0", node: str = "node-a", **producer: Any) -> dict[str, Any]:
    said = {"role": "rank", "label": label, "node": node, "is_primary": True, "started_at": START_US, **producer}
    return {"producer": said, "run": {"run_id": run, "project": "p", "primary_label": "rank0"}, "seen_at": START_US + 5}


def block(*bodies: Any, uuid: bytes = PRODUCER, first: int = 0, metrics: Rank | None = None) -> bytes:
    """Return a block of an import: a body per seq, and before them the events of a rank from seq 100 on."""
    builder = BlockBuilder()
    for seq, payload in enumerate(metrics.events[1:] if metrics is not None else (), 100):
        builder.add(uuid, seq, payload)
    for seq, body in enumerate(bodies, first):
        builder.add(uuid, seq, encode(EventKind.IMPORTED, START_US, body))
    return builder.build(0)
