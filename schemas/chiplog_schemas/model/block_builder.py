"""Build blocks: events row by row in, columns out. The layout is in block_format.py."""

import sys
from array import array
from collections.abc import Sequence
from typing import Any

from chiplog_schemas.codec import CodecError, pack
from chiplog_schemas.model.block_format import BLOCK_VERSION, LAST_GROUP_KIND, OPAQUE, PREFIX, BlockError, keys_of
from chiplog_schemas.model.events import FIELDS, MATRIX_KINDS, PRODUCER_BYTES, Column, decode, matches_schema
from chiplog_schemas.model.intervals import Intervals, runs_of

_TYPE_CODES = {"<u4": "I", "<i8": "q"}  # of the module array
_FLOAT32 = b"\xca"  # msgpack's marker of a 32-bit float

# Approximate size of a block without payloads: msgpack of the header's entries, and columns that rows do not have.
_PRODUCER_BYTES = 32
_RANGE_BYTES = 18
_GROUP_BYTES = 192
_ROW_BYTES = 36  # producer, seq, ts, and the integers that msgpack stores in one byte


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

    def name(self, producer: bytes) -> None:
        """Name a producer, in this order, without an event. The index numbers producers as blocks name them."""
        if producer not in self._producers:
            self._producers[producer] = len(self._seqs)
            self._seqs.append([])
            self.n_bytes += _PRODUCER_BYTES

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
        if not matches_schema(event) or kind > LAST_GROUP_KIND:
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
        out = ColumnArea()
        groups = []
        for (kind, keys), rows in self._groups.items():
            columns = [
                out.integers("producer", "<u4", rows.producer),
                out.integers("seq", "<i8", rows.seq),
                out.integers("ts", "<i8", rows.ts),
            ]
            if kind == OPAQUE:
                columns.append(out.objects("payload", rows.columns[0]))
            else:
                fields = [field for field in FIELDS[kind] if field[1] is not Column.KEYS]
                for (name, column), values in zip(fields, rows.columns, strict=True):
                    if column is Column.VALUES:
                        columns.append(out.bytes_of(name, "<f8", b"".join(values)))
                    elif column is Column.INT:
                        columns.append(out.integers(name, "<i8", values))
                    else:
                        columns.append(out.objects(name, values))
            groups.append([kind, keys or None, len(rows.seq), columns])
        producers = [
            [producer, [bound for run in _runs(seqs) for bound in run]]
            for producer, seqs in zip(self._producers, self._seqs, strict=True)
        ]
        self.__init__()  # type: ignore[misc]  # reset: the constructor sets all state
        return out.block([created_ts, producers, groups])


class ColumnArea:
    """The column area of a block under construction. Offsets count from the start of that area until `block`."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def bytes_of(self, name: str, kind: str, data: bytes) -> list[Any]:
        """Add a column of packed numbers; return its entry in the header."""
        column = [name, kind, self._size, len(data)]
        padding = -len(data) % 8
        self._parts += [data, bytes(padding)]
        self._size += len(data) + padding
        return column

    def integers(self, name: str, kind: str, values: Sequence[int]) -> list[Any]:
        """Add a column of integers; return its entry in the header."""
        packed = array(_TYPE_CODES[kind], values)  # not numpy, which would cost each agent 10 MiB
        if sys.byteorder == "big":
            packed.byteswap()
        return self.bytes_of(name, kind, packed.tobytes())

    def objects(self, name: str, values: list[Any]) -> list[Any]:
        """Add a column of msgpack values; return its entry in the header."""
        return self.bytes_of(name, "o", pack(values))

    def block(self, header: list[Any]) -> bytes:
        """Return the block of a header and the columns added so far."""
        # Offsets are relative to the column area, whose start follows from header_length. So they do not depend on it.
        packed = pack(header)
        padding = -(PREFIX.size + len(packed)) % 8
        return b"".join([PREFIX.pack(len(packed), BLOCK_VERSION, 0), packed, bytes(padding), *self._parts])


def _keys_are_valid(keys_bin: bytes, values: bytes) -> bool:
    try:
        return len(keys_of(keys_bin)) * 8 == len(values)
    except BlockError:
        return False


def _runs(seqs: list[int]) -> list[tuple[int, int]]:
    """Return the ranges of one producer's seqs in arrival order, which are nearly always ascending and without gaps."""
    if not seqs:
        return []
    if seqs[-1] - seqs[0] == len(seqs) - 1 and all(map(int.__lt__, seqs, seqs[1:])):
        return [(seqs[0], seqs[-1])]
    return list(Intervals(runs_of(sorted(seqs))))
