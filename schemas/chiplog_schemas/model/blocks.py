"""The block: many events of many producers as columns. The agent converts rows to columns once.

    offset  size  field
         0     4  header_length
         4     2  version        1
         6     2  flags          0
         8     …  header         msgpack: [created_ts, producers, groups]
         …     …  columns        each at a multiple of 8 from the start of the block

    producers  [[producer: 16 bytes, [first, last, first, last …]: the seqs of it that this block holds], …]
    groups     [[kind, keys, n_rows, columns], …]    keys: bin (a msgpack array of str), or nil
    columns    [[name, type, offset, size], …]       type: '<i8', '<u4', '<f8', or 'o': a msgpack array of n_rows values

Every group has the columns `producer` (<u4, index into producers), `seq` and `ts` (<i8), and the columns that FIELDS
defines for its kind. `values` is the matrix of n_rows × n_keys, row by row. A group of kind 0 holds the events that
this version cannot decode and those of kinds above 13. Its column `payload` keeps them verbatim.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chiplog_schemas.codec import CodecError, pack, short_repr, unpack
from chiplog_schemas.limits import KEY_BYTES_MAX, KEYS_MAX, NUMBER_LIMIT
from chiplog_schemas.model.events import FIELDS, MATRIX_KINDS, PRODUCER_BYTES, Column, decode, matches_schema
from chiplog_schemas.model.intervals import Intervals, runs_of

BLOCK_VERSION = 1
OPAQUE = 0  # the group kind of events kept verbatim
_LAST_GROUP_KIND = 13  # the highest in a block of version 1: its first readers reject a block with a higher one
_PREFIX = struct.Struct("<IHH")
_FLOAT32 = b"\xca"  # msgpack's marker of a 32-bit float

# Approximate size of a block without payloads: msgpack of the header's entries, and columns that rows do not have.
_PRODUCER_BYTES = 32
_RANGE_BYTES = 18
_GROUP_BYTES = 192
_ROW_BYTES = 36  # producer, seq, ts, and the integers that msgpack stores in one byte


class BlockError(ValueError):
    """Bytes that are not a block of a known version."""


class NewerBlockError(BlockError):
    """A block of a newer version. The index parks it instead of putting it into quarantine."""

    def __init__(self, version: int) -> None:
        super().__init__(f"block of version {version} is newer than {BLOCK_VERSION}; upgrade the collector")
        self.version = version


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


class _Rows:
    """The rows of a group under construction: one Python list per column."""

    __slots__ = ("columns", "producer", "seq", "ts", "values_bytes")

    def __init__(self, n_fields: int, values_bytes: int = 0) -> None:
        self.values_bytes = values_bytes  # of a row of the matrix
        self.producer: list[int] = []
        self.seq: list[int] = []
        self.ts: list[int] = []
        self.columns: list[list[Any]] = [[] for _ in range(n_fields)]


class BlockBuilder:
    """Collect events row by row and build one block of them.

    Not thread-safe. `n_bytes` is the approximate size of the block, `n_events` the number of events. The builder
    ignores an event that it already holds: an adopted journal may repeat what its process sent just before it ended.
    """

    def __init__(self) -> None:
        self._producers: dict[bytes, int] = {}
        self._seqs: list[list[int]] = []
        self._seen: dict[int, set[int]] = {}  # only for producers whose seqs arrived out of order
        self._groups: dict[tuple[int, bytes], _Rows] = {}
        self.n_bytes = 0
        self.n_events = 0

    def add(self, producer: bytes, seq: int, payload: bytes | memoryview) -> list[Any] | None:
        """Add one event and return it decoded. Return None if it is kept verbatim or is a duplicate.

        producer: 16 bytes. seq: its number. payload: the result of `events.encode`.
        """
        index = self._producers.get(producer)
        if index is None:
            assert len(producer) == PRODUCER_BYTES
            index = self._producers[producer] = len(self._seqs)
            self._seqs.append([])
            self.n_bytes += _PRODUCER_BYTES
        seqs = self._seqs[index]
        last = seqs[-1] if seqs else -2
        if (seq <= last or index in self._seen) and not self._is_new(index, seq):
            return None
        if seq != last + 1:
            self.n_bytes += _RANGE_BYTES
        seqs.append(seq)
        self.n_events += 1
        self.n_bytes += _ROW_BYTES
        try:
            event = decode(payload)
        except CodecError:
            self._add_opaque(index, seq, 0, payload)
            return None
        kind = event[0]
        if not matches_schema(event) or kind > _LAST_GROUP_KIND:
            self._add_opaque(index, seq, event[1], payload)
            return event
        if kind in MATRIX_KINDS:
            _, ts, lead, keys, values = event
            rows = self._groups.get((kind, keys))
            if rows is None:
                rows = self._begin_matrix(kind, keys, values)
            if rows is None or len(values) != rows.values_bytes:
                self._add_opaque(index, seq, ts, payload)
                return event
            rows.columns[0].append(lead)
            rows.columns[1].append(values)
            self.n_bytes += len(values)
        else:
            rows = self._groups.get((kind, b""))
            if rows is None:
                rows = self._groups[(kind, b"")] = _Rows(len(event) - 2)
            ts = event[1]
            for column, value in zip(rows.columns, event[2:], strict=True):
                column.append(value)
            # A 32-bit float, which other writers may use, takes four more bytes when it is encoded again.
            self.n_bytes += len(payload) + 4 * bytes(payload).count(_FLOAT32)  # safeguard: float32-growth-counted
        rows.producer.append(index)
        rows.seq.append(seq)
        rows.ts.append(ts)
        return event

    def _is_new(self, index: int, seq: int) -> bool:
        """Return True, and note the seq, if the builder lacks it. For a producer whose seqs arrive out of order."""
        seen = self._seen.get(index)
        if seen is None:
            seen = self._seen[index] = set(self._seqs[index])
        is_new = seq not in seen
        seen.add(seq)
        return is_new

    def _begin_matrix(self, kind: int, keys: bytes, values: bytes) -> _Rows | None:
        """Return an empty group for rows with these keys; None if the keys are invalid or do not match the values."""
        if not _keys_are_valid(keys, values):
            return None
        rows = self._groups[(kind, keys)] = _Rows(2, len(values))
        self.n_bytes += _GROUP_BYTES + len(keys)
        return rows

    def _add_opaque(self, index: int, seq: int, ts: int, payload: bytes | memoryview) -> None:
        rows = self._groups.setdefault((OPAQUE, b""), _Rows(1))
        rows.producer.append(index)
        rows.seq.append(seq)
        rows.ts.append(ts)
        rows.columns[0].append(bytes(payload))
        self.n_bytes += len(payload)

    def build(self, created_ts: int) -> bytes:
        """Return the block of everything added so far, and reset the builder."""
        out = _Columns()
        groups = []
        for (kind, keys), rows in self._groups.items():
            columns = [
                out.array("producer", np.array(rows.producer, dtype="<u4")),
                out.array("seq", np.array(rows.seq, dtype="<i8")),
                out.array("ts", np.array(rows.ts, dtype="<i8")),
            ]
            if kind == OPAQUE:
                columns.append(out.objects("payload", rows.columns[0]))
            else:
                fields = [field for field in FIELDS[kind] if field[1] is not Column.KEYS]
                for (name, column), values in zip(fields, rows.columns, strict=True):
                    if column is Column.VALUES:
                        columns.append(out.bytes_of(name, "<f8", b"".join(values)))
                    elif column is Column.INT:
                        columns.append(out.array(name, np.array(values, dtype="<i8")))
                    else:
                        columns.append(out.objects(name, values))
            groups.append([kind, keys or None, len(rows.seq), columns])
        producers = [
            [producer, [bound for run in _runs(seqs) for bound in run]]
            for producer, seqs in zip(self._producers, self._seqs, strict=True)
        ]
        self.__init__()  # type: ignore[misc]  # reset: the constructor sets all state
        return out.block([created_ts, producers, groups])


class _Columns:
    """The column area of a block under construction. Offsets count from the start of that area until `block`."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def bytes_of(self, name: str, kind: str, data: bytes) -> list[Any]:
        column = [name, kind, self._size, len(data)]
        padding = -len(data) % 8
        self._parts += [data, bytes(padding)]
        self._size += len(data) + padding
        return column

    def array(self, name: str, values: NDArray[Any]) -> list[Any]:
        return self.bytes_of(name, values.dtype.str if values.dtype.itemsize > 1 else "<u1", values.tobytes())

    def objects(self, name: str, values: list[Any]) -> list[Any]:
        return self.bytes_of(name, "o", pack(values))

    def block(self, header: list[Any]) -> bytes:
        # Offsets are relative to the column area, whose start follows from header_length. So they do not depend on it.
        packed = pack(header)
        padding = -(_PREFIX.size + len(packed)) % 8
        return b"".join([_PREFIX.pack(len(packed), BLOCK_VERSION, 0), packed, bytes(padding), *self._parts])


def decode_block(data: bytes | memoryview) -> Block:
    """Decode a block into numpy columns that are views of `data`.

    Raises NewerBlockError for a newer version and BlockError for bytes that are not a block.
    """
    view = memoryview(data)
    if len(view) < _PREFIX.size:
        raise BlockError(f"block of {len(view)} bytes is shorter than its prefix of {_PREFIX.size}")
    header_length, version, _flags = _PREFIX.unpack_from(view)
    if version > BLOCK_VERSION:
        raise NewerBlockError(version)
    if version != BLOCK_VERSION:
        raise BlockError(f"block of version {version} was never written")
    start = _PREFIX.size + header_length
    area = view[start + -start % 8 :]
    try:
        created_ts, producers, groups = unpack(view[_PREFIX.size : start])
        if type(created_ts) is not int:
            raise BlockError("created_ts is not an integer")
        _check_total_size(groups, len(area))  # safeguard: columns-apart
        named = [(producer, _ranges(producer, flat)) for producer, flat in producers]
        block = Block(created_ts, named, [_decode_group(group, area, len(named)) for group in groups])
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


_COLUMN_TYPES = {Column.INT: "<i8", Column.OBJECT: "o", Column.VALUES: "<f8"}


def _column_types(kind: int) -> dict[str, str]:
    """Return the columns that a group of this kind has, with their types."""
    types = {"producer": "<u4", "seq": "<i8", "ts": "<i8"}
    if kind == OPAQUE:
        return types | {"payload": "o"}
    if kind not in FIELDS or kind > _LAST_GROUP_KIND:
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


def keys_of(keys_bin: bytes) -> tuple[str, ...]:
    """Decode a group's keys. Raises BlockError unless they are distinct strings within the limits."""
    try:
        keys = unpack(keys_bin)
    except CodecError as error:
        raise BlockError(str(error)) from error
    if not (isinstance(keys, list) and 0 < len(keys) <= KEYS_MAX and all(_is_key(key) for key in keys)):
        raise BlockError("keys are not an array of names within the limits")
    if len(set(keys)) != len(keys):
        raise BlockError("keys repeat")
    return tuple(keys)


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and len(key.encode("utf-8", "surrogateescape")) <= KEY_BYTES_MAX


def _keys_are_valid(keys_bin: bytes, values: bytes) -> bool:
    try:
        return len(keys_of(keys_bin)) * 8 == len(values)
    except BlockError:
        return False


def _runs(seqs: list[int]) -> list[tuple[int, int]]:
    """Return the ranges of one producer's seqs in arrival order, which are nearly always ascending and without gaps."""
    if seqs[-1] - seqs[0] == len(seqs) - 1 and all(map(int.__lt__, seqs, seqs[1:])):
        return [(seqs[0], seqs[-1])]
    return list(Intervals(runs_of(sorted(seqs))))
