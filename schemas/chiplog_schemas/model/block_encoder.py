"""Encode a decoded block again, for writers that change one: numpy columns in. Agents use block_builder.py instead."""

import numpy as np

from chiplog_schemas.model.block_builder import ColumnArea
from chiplog_schemas.model.block_decoder import Block, Group


def encode_block(block: Block) -> bytes:
    """Return the bytes of a block: decoded, they are this block."""
    area = ColumnArea()
    groups = [[group.kind, group.keys_bin or None, len(group.seq), _columns(area, group)] for group in block.groups]
    producers = [[uuid, [bound for run in ranges for bound in run]] for uuid, ranges in block.producers]
    return area.block([block.created_ts, producers, groups])


def _columns(area: ColumnArea, group: Group) -> list[list[object]]:
    columns = [
        area.bytes_of("producer", "<u4", group.producer.astype("<u4").tobytes()),
        area.bytes_of("seq", "<i8", group.seq.astype("<i8").tobytes()),
        area.bytes_of("ts", "<i8", group.ts.astype("<i8").tobytes()),
    ]
    for name, values in group.columns.items():
        if not isinstance(values, np.ndarray):
            columns.append(area.objects(name, values))
        else:
            kind = "<f8" if values.dtype.kind == "f" else "<i8"
            columns.append(area.bytes_of(name, kind, values.astype(kind).tobytes()))
    return columns
