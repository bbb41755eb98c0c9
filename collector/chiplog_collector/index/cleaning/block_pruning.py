"""Remove deleted rows from blocks of the log, pure.

Identities, ends and artifacts of deleted producers stay: they are small, and a rebuild decides names, attempts and
primaries of other labels and numbers of other versions by them, before it comes to the record that deletes them.
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chiplog_collector.index.apply.validation import floats_of, text_of
from chiplog_schemas.codec import CodecError, unpack
from chiplog_schemas.model.block_decoder import Block, Group, decode_block
from chiplog_schemas.model.block_encoder import encode_block
from chiplog_schemas.model.block_format import BLOCK_VERSION, OPAQUE, PREFIX, BlockError
from chiplog_schemas.model.events import EventKind, EventSpec, Field, decode
from chiplog_schemas.model.import_event import identity_of_import
from chiplog_schemas.model.intervals import Intervals, runs_of
from chiplog_schemas.sql import LARGE

_LATE_US = 3_600 * 10**6  # longer than a sample waits for its block
_DECIDING = (EventKind.IDENTITY, EventKind.STATE)
_FACTS: dict[int, EventSpec] = {kind: kind.spec for kind in EventKind if kind.spec.table in LARGE}
_CHECKS = {Field.TEXT: text_of, Field.NAME: text_of, Field.FLOATS: floats_of}


def trim_block(payload: bytes | memoryview) -> bytes | None:
    """Return a block without the facts that a store has, as a record of kind TRIMMED holds it; None if it has none.

    Its producers keep their ranges of seqs. A block that cannot be read stays as it is, and so does a fact that the
    index rejects: it is in no store.
    """
    try:
        block = decode_block(payload)
    except BlockError:
        return None
    masks = [
        _rejected_rows(group) if group.kind in _FACTS else np.ones(len(group.seq), np.bool_) for group in block.groups
    ]
    if all(mask.all() for mask in masks):
        return None
    block.groups = [_rows_of(group, mask) for group, mask in zip(block.groups, masks, strict=True) if mask.any()]
    return encode_block(block)  # safeguard: trimmed-seqs-stay-received


def _rejected_rows(group: Group) -> NDArray[np.bool_]:
    """Return which rows of a group of facts the index would reject."""
    fields = _FACTS[group.kind].fields
    checked = [(group.columns[name], _CHECKS[field]) for name, field in fields.items() if field in _CHECKS]
    found = [any(not _is_accepted(values[row], check) for values, check in checked) for row in range(len(group.seq))]
    return np.array(found if checked else np.zeros(len(group.seq)), dtype=np.bool_)


def _is_accepted(value: Any, check: Callable[[Any], Any]) -> bool:
    try:
        check(value)
    except Exception:  # whatever makes the index reject it
        return False
    return True


def prune_block(
    payload: bytes | memoryview,
    deleted: frozenset[bytes],
    samples_until: int | None = None,
    *,
    is_trimmed: bool = False,
) -> bytes | None:
    """Return a block without the rows of deleted producers; empty if nothing is left, None if it has none of them.

    samples_until: system samples before this time, in µs, are removed, too. A block that cannot be read stays as it is.
    is_trimmed: see `trim_block`; the seqs of other producers stay.
    """
    if not _may_have_removed(payload, deleted, samples_until):
        return None  # most blocks: only the header was read
    try:
        block = decode_block(payload, is_trimmed=is_trimmed)
    except BlockError:
        return None
    expired = np.array([uuid in deleted for uuid, _ in block.producers], dtype=np.bool_)
    masks = [_kept_rows(group, expired, samples_until) for group in block.groups]
    if all(mask.all() for mask in masks):
        return None
    return _selected(block, masks, expired, is_trimmed=is_trimmed)


def _may_have_removed(payload: bytes | memoryview, deleted: frozenset[bytes], samples_until: int | None) -> bool:
    try:
        header_length, version, _ = PREFIX.unpack_from(payload)
        created_ts, producers, groups = unpack(memoryview(payload)[PREFIX.size : PREFIX.size + header_length])
        if version != BLOCK_VERSION:
            return False
        # An agent puts its samples into blocks within seconds, by the same clock.
        is_old = samples_until is not None and created_ts < samples_until + _LATE_US
        has_samples = is_old and any(group[0] == EventKind.SYSTEM for group in groups)
        return has_samples or any(uuid in deleted for uuid, _ in producers)
    except (CodecError, struct.error, ValueError, TypeError, IndexError):
        return False


def _kept_rows(group: Group, expired: NDArray[np.bool_], samples_until: int | None) -> NDArray[np.bool_]:
    kept = np.ones(len(group.seq), dtype=np.bool_)
    if group.kind not in _DECIDING:
        kept &= ~expired[group.producer]
    if group.kind == OPAQUE:  # safeguard: imported-identity-stays
        kept |= np.array([_is_deciding(payload) for payload in group.columns["payload"]], dtype=np.bool_)
    if group.kind == EventKind.SYSTEM and samples_until is not None:
        kept &= group.ts >= samples_until
    return kept


def _is_deciding(payload: object) -> bool:
    """Return True for an imported identity and a version of an artifact, which travel as payloads of their kind."""
    try:
        event = decode(payload if isinstance(payload, bytes) else b"")
    except CodecError:
        return False
    if event[0] == EventKind.ARTIFACT:  # safeguard: version-numbers-stay
        return True
    return event[0] == EventKind.IMPORTED and len(event) > 2 and bool(identity_of_import(event[2]))


def _selected(block: Block, masks: list[NDArray[np.bool_]], expired: NDArray[np.bool_], *, is_trimmed: bool) -> bytes:
    """Return the block of the kept rows. Its producers' ranges are those of the kept rows.

    Producers that the block only names, to number them in this order, stay; those of a trimmed block with their ranges.
    """
    groups = [_rows_of(group, mask) for group, mask in zip(block.groups, masks, strict=True) if mask.any()]
    named = [n for n, (_, ranges) in enumerate(block.producers) if (not ranges or is_trimmed) and not expired[n]]
    if not groups and not named:
        return b""
    owners = np.concatenate([np.zeros(0, dtype=np.uint32), *(group.producer for group in groups)])
    seqs = np.concatenate([np.zeros(0, dtype=np.int64), *(group.seq for group in groups)])
    left = np.unique(np.concatenate([owners, np.array(named, dtype=np.uint32)]))
    numbers = np.zeros(len(block.producers), dtype=np.uint32)
    numbers[left] = np.arange(len(left), dtype=np.uint32)
    producers = []
    for index in left.tolist():
        uuid, ranges = block.producers[index]
        if not is_trimmed or expired[index]:
            own = np.sort(seqs[owners == index]).tolist()
            ranges = list(Intervals(runs_of(own))) if own else []
        producers.append((uuid, ranges))
    for group in groups:
        group.producer = numbers[group.producer]
    return encode_block(Block(block.created_ts, producers, groups))


def _rows_of(group: Group, mask: NDArray[np.bool_]) -> Group:
    columns = {
        name: values[mask] if isinstance(values, np.ndarray) else [values[n] for n in np.flatnonzero(mask).tolist()]
        for name, values in group.columns.items()
    }
    return Group(group.kind, group.keys_bin, group.producer[mask], group.seq[mask], group.ts[mask], columns)
