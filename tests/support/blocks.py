"""Turn a block back into rows, independently of the index, which reads columns."""

from typing import Any

from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_decoder import Block, Group
from chiplog_schemas.model.block_format import OPAQUE
from chiplog_schemas.model.events import FIELDS, Column


def block_to_rows(block: Block) -> list[tuple[bytes, int, bytes]]:
    """Turn a block back into rows: (producer, seq, payload) by producer and seq. The inverse of the builder."""
    rows: list[tuple[bytes, int, bytes]] = []
    for group in block.groups:
        if group.kind == OPAQUE:
            payloads = group.columns["payload"]
        else:
            payloads = [pack([group.kind, *fields]) for fields in zip(group.ts.tolist(), *_fields(group), strict=True)]
        for index, seq, payload in zip(group.producer.tolist(), group.seq.tolist(), payloads, strict=True):
            rows.append((block.producers[index][0], seq, payload))
    return sorted(rows, key=lambda row: row[:2])


def _fields(group: Group) -> list[list[Any]]:
    fields: list[list[Any]] = []
    for name, column in FIELDS[group.kind]:
        if column is Column.KEYS:
            fields.append([group.keys_bin] * len(group.seq))
        elif column is Column.VALUES:
            fields.append([row.tobytes() for row in group.columns[name]])
        elif column is Column.INT:
            fields.append(group.columns[name].tolist())
        else:
            fields.append(group.columns[name])
    return fields
