"""Decode blocks into numpy columns, and reject bytes that are not a block. The layout is in block_format.py."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chiplog_schemas.codec import CodecError, short_repr, unpack
from chiplog_schemas.limits import NUMBER_LIMIT
from chiplog_schemas.model.block_format import (
    BLOCK_VERSION,
    LAST_GROUP_KIND,
    OPAQUE,
    PREFIX,
    BlockError,
    NewerBlockError,
    keys_of,
)
from chiplog_schemas.model.events import FIELDS, MATRIX_KINDS, PRODUCER_BYTES, Column

_COLUMN_TYPES = {Column.INT: "<i8", Column.OBJECT: "o", Column.VALUES: "<f8"}


@dataclass(slots=True)
class Group:
    """Rows of one kind that share one tuple of keys.

    kind: EventKind or OPAQUE. keys: for matrix kinds the names of the columns of `values`, else empty.
    producer: uint32 (n,), index into Block.producers. seq, ts: int64 (n,), ts in µs.
    columns: the kind's other fields; int64 (n,) arrays or lists of n objects; `values` is float64 (n, len(keys)).
    """

    kind: int
    keys_bin: bytes
    producer: NDArray[np.uint32]
    seq: NDArray[np.int64]
    ts: NDArray[np.int64]
    columns: dict[str, Any]


@dataclass(slots=True)
class Block:
    """A decoded block. `producers` holds the 16 bytes and the closed seq ranges of each producer."""

    created_ts: int
    producers: list[tuple[bytes, list[tuple[int, int]]]]
    groups: list[Group]

    @property
    def is_imported(self) -> bool:
        """Return True if an import made it: it shows nothing about clocks, and its sender is no producer's agent."""
        return self.created_ts == 0


def decode_block(data: bytes | memoryview, *, is_trimmed: bool = False) -> Block:
    """Decode a block into numpy columns that are views of `data`.

    is_trimmed: rows may be missing: those that a store has.

    Raises NewerBlockError for a newer version and BlockError for bytes that are not a block.
    """
    view = memoryview(data)
    if len(view) < PREFIX.size:
        raise BlockError(f"block of {len(view)} bytes is shorter than its prefix of {PREFIX.size}")
    header_length, version, _flags = PREFIX.unpack_from(view)
    if version > BLOCK_VERSION:
        raise NewerBlockError(version)
    if version != BLOCK_VERSION:
        raise BlockError(f"block of version {version} was never written")
    start = PREFIX.size + header_length
    area = view[start + -start % 8 :]
    try:
        created_ts, producers, groups = unpack(view[PREFIX.size : start])
        if type(created_ts) is not int:
            raise BlockError("created_ts is not an integer")
        _check_total_size(groups, len(area))  # safeguard: columns-apart
        named = [(producer, _ranges(producer, flat)) for producer, flat in producers]
        block = Block(created_ts, named, [_decode_group(group, area, len(named)) for group in groups])
        if is_trimmed:
            _check_left(block)
        else:
            _check_ranges(block)  # safeguard: rows-match-seqs
        return block
    except BlockError:
        raise
    except (CodecError, ValueError, TypeError, KeyError, IndexError) as error:
        raise BlockError(f"block cannot be decoded: {type(error).__name__} {error}") from error


def _check_total_size(groups: Any, area_bytes: int) -> None:
    """Reject columns that overlap: a few bytes could claim any amount of memory and time."""
    claimed = 0
    for _, _, _, described in groups:
        for name, _, _, size in described:
            if type(size) is not int or size < 0:
                raise BlockError(f"column {short_repr(name)} has no size")
            claimed += size
    if claimed > area_bytes:
        raise BlockError(f"columns of {claimed} bytes do not fit their block of {area_bytes}")


def _ranges(producer: Any, flat: Any) -> list[tuple[int, int]]:
    if not (isinstance(producer, bytes) and len(producer) == PRODUCER_BYTES and isinstance(flat, list)):
        raise BlockError("a producer is 16 bytes and a list of seq ranges")
    ranges = list(zip(flat[::2], flat[1::2], strict=True))
    previous = -1
    for first, last in ranges:
        if not (type(first) is int and type(last) is int and previous < first <= last < NUMBER_LIMIT):
            raise BlockError(f"seq range {short_repr(first)}..{short_repr(last)} is not ascending")
        previous = last
    return ranges


def _column_types(kind: int) -> dict[str, str]:
    """Return the columns that a group of this kind has, with their types."""
    types = {"producer": "<u4", "seq": "<i8", "ts": "<i8"}
    if kind == OPAQUE:
        return types | {"payload": "o"}
    if kind not in FIELDS or kind > LAST_GROUP_KIND:
        raise BlockError(f"group of kind {short_repr(kind)} is unknown")
    return types | {name: _COLUMN_TYPES[column] for name, column in FIELDS[kind] if column is not Column.KEYS}


def _decode_group(group: Any, area: memoryview, n_producers: int) -> Group:
    kind, keys, n_rows, described = group
    if type(n_rows) is not int or not 0 < n_rows <= len(area):
        raise BlockError(f"group of {short_repr(n_rows)} rows does not fit its block")
    if type(kind) is not int or type(keys) is not (bytes if kind in MATRIX_KINDS else type(None)):
        raise BlockError(f"group of kind {short_repr(kind)} has the wrong keys")
    expected = _column_types(kind)
    columns: dict[str, Any] = {}
    for name, column_type, offset, size in described:
        if not (type(offset) is int and type(size) is int and 0 <= offset <= offset + size <= len(area)):
            raise BlockError(f"column {short_repr(name)} lies outside of its block")
        if expected.get(name) != column_type:
            raise BlockError(f"group of kind {kind} has no column {short_repr(name)} of type {short_repr(column_type)}")
        data = area[offset : offset + size]
        column = unpack(data) if column_type == "o" else np.frombuffer(data, dtype=column_type)
        if column_type == "<f8":  # the matrix of a kind that has keys
            column = column.reshape(n_rows, -1)
        if not isinstance(column, list | np.ndarray) or len(column) != n_rows:
            raise BlockError(f"column {name} does not have the {n_rows} rows of its group")
        columns[name] = column
    if len(columns) != len(expected):
        raise BlockError(f"group of kind {kind} lacks one of {sorted(expected)}")
    producer, seq, ts = (columns.pop(name) for name in ("producer", "seq", "ts"))
    if int(producer.max()) >= n_producers:
        raise BlockError("a row names a producer that the block does not")
    if keys is not None and columns["values"].shape[1] != len(keys_of(keys)):
        raise BlockError("a matrix does not have a column for each of its keys")
    return Group(kind, keys or b"", producer, seq, ts, columns)


def _check_ranges(block: Block) -> None:
    """Raise BlockError unless the rows are exactly the seqs of the producers' ranges, each of them once."""
    bounds = [(index, first, last) for index, (_, ranges) in enumerate(block.producers) for first, last in ranges]
    n_rows = sum(len(group.seq) for group in block.groups)
    if sum(last - first + 1 for _, first, last in bounds) != n_rows:
        raise BlockError(f"block has other rows, {n_rows}, than the seqs that it names")
    if len({producer for producer, _ in block.producers}) != len(block.producers):
        raise BlockError("a producer is named twice")
    if not n_rows:
        return
    producer = np.concatenate([group.producer for group in block.groups])
    seq = np.concatenate([group.seq for group in block.groups])
    owner, first, last = np.array(bounds, dtype=np.int64).T
    counts = last - first + 1
    offsets = np.cumsum(counts) - counts
    if np.array_equal(owner, np.arange(len(block.producers))):  # one range each: sorting is not needed
        inside = (seq >= first[producer]) & (seq <= last[producer])
        seen = np.zeros(n_rows, dtype=np.bool_)
        seen[(seq - first[producer] + offsets[producer])[inside]] = True
        held = bool(inside.all() and seen.all())
    else:
        order = np.lexsort((seq, producer))
        expected = np.repeat(first - offsets, counts) + np.arange(n_rows)
        held = np.array_equal(producer[order], np.repeat(owner, counts)) and np.array_equal(seq[order], expected)
    if not held:
        raise BlockError("block has other rows than the seqs that it names")


def _check_left(block: Block) -> None:
    """Raise BlockError unless each row has a seq of its producer's ranges, and no two have the same."""
    if not block.groups:
        return
    producer = np.concatenate([group.producer for group in block.groups])
    seq = np.concatenate([group.seq for group in block.groups])
    rows = np.stack([producer.astype(np.int64), seq], axis=1)
    if len(np.unique(rows, axis=0)) != len(rows):
        raise BlockError("trimmed block has a seq twice")
    for index in np.unique(producer).tolist():
        bounds = np.array(block.producers[index][1], dtype=np.int64).reshape(-1, 2)
        seqs = seq[producer == index]
        at = np.searchsorted(bounds[:, 0], seqs, side="right") - 1
        if not ((at >= 0) & (seqs <= bounds[at, 1])).all():
            raise BlockError("trimmed block has other rows than the seqs that it names")
