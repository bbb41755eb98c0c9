"""The decoders of bytes and frames, each with a generator of inputs and the properties of its result.

A target has `make`, which builds an input from a chooser, and `check`, which returns True if the input was accepted and
raises if a promise is broken: an error of an undeclared type, or an accepted input that is unsound.
"""

import io
import os
import random
import struct
from collections import Counter
from typing import Any, Protocol

from chiplog_agent.stats.frames import FRAME_BYTES_MAX, FrameError, FrameReader
from chiplog_client.results.result import QueryError, Result
from chiplog_collector.query.sql_guard import SqlGuardProcess
from chiplog_collector.receiver.commit import recover_lost, recover_senders
from chiplog_schemas.codec import CodecError, pack, unpack
from chiplog_schemas.limits import FILE_CHUNK_BYTES, KEY_BYTES_MAX, KEYS_MAX, NUMBER_LIMIT
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.block_decoder import Block, decode_block
from chiplog_schemas.model.block_format import OPAQUE, BlockError
from chiplog_schemas.model.events import (
    FIELDS,
    IDENTITY_FIELDS,
    STATE_FIELDS,
    Column,
    decode,
    matches_schema,
    select_typed,
)
from chiplog_schemas.model.receipt import decode_receipt
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.query import query_messages
from chiplog_schemas.storage.journal_dir import decode_head, encode_head
from chiplog_schemas.storage.record import CorruptRange, Kind, Record, parse_record, scan_records
from chiplog_schemas.storage.segment_format import SegmentHeader, decode_header, encode_header
from tests.fuzz import samples
from tests.fuzz.grammar import TOKENS, frame, hostile_record, integer, mutate_bytes, mutate_value, pack_hostile, pick
from tests.schemas.make_vectors import PRODUCER_A, PRODUCER_B, RECORD_PAYLOADS, SENDER, TS
from tests.support.blocks import block_to_rows


class Target(Protocol):
    """One decoder under fire. A new one is made for each batch."""

    def make(self, chooser: random.Random) -> Any:
        """Return an input."""

    def check(self, data: Any) -> bool:
        """Decode the data; return True if it was accepted."""


def require(holds: bool, what: str) -> None:
    """Raise if a promise is broken. Not an assertion, because failing assertions are what the fuzzer searches for."""
    if not holds:
        raise BrokenPromiseError(what)


class BrokenPromiseError(Exception):
    """A result that breaks a promise."""


def hostile_event(chooser: random.Random) -> bytes:
    """Return the bytes of an event with something wrong."""
    data = pick(chooser, samples.events())
    if chooser.random() < 0.15:
        return mutate_bytes(chooser, data)
    value = mutate_value(chooser, unpack(data))
    if chooser.random() < 0.3 and isinstance(value, list):
        value = mutate_value(chooser, value)
    return pack_hostile(value)


class Codec:
    """codec.unpack: one plain value, or CodecError; an accepted value can be encoded again."""

    def __init__(self) -> None:
        self._bases = (*samples.events(), *samples.heads("wire"), *samples.heads("questions"))

    def make(self, chooser: random.Random) -> bytes:
        base = pick(chooser, self._bases)
        if chooser.random() < 0.5:
            return mutate_bytes(chooser, base)
        return pack_hostile(mutate_value(chooser, unpack(base)))

    def check(self, data: bytes) -> bool:
        try:
            value = unpack(data)
        except CodecError:
            return False
        again = pack(value)
        require(pack(unpack(again)) == again, "a value changes when it is written again")
        return True


class Events:
    """events.decode, typed and fits_schema: every field from a peer has its declared type."""

    def make(self, chooser: random.Random) -> bytes:
        return hostile_event(chooser)

    def check(self, data: bytes) -> bool:
        try:
            event = decode(data)
        except CodecError:
            return False
        require(type(event[0]) is int and -(1 << 63) <= event[1] < 1 << 63, "an event without kind or time")
        fits = matches_schema(event)
        for value in event[2:]:
            for fields in (IDENTITY_FIELDS, STATE_FIELDS):
                for name, kept in select_typed(value, fields).items():
                    wanted = fields[name]
                    require(isinstance(kept, wanted) and (wanted is bool or type(kept) is not bool), f"{name} is wrong")
        if fits:
            for (_, column), value in zip(FIELDS[event[0]], event[2:], strict=True):
                require(column is not Column.INT or type(value) is int, "a number that is none")
        require(pack(decode(pack(event))) == pack(event), "an event changes when it is written again")
        return fits


class Wire:
    """wire.parse: a message whose every field has its type and bound, or WireError."""

    def make(self, chooser: random.Random) -> list[bytes]:
        return hostile_frames(chooser, "wire")

    def check(self, frames: list[bytes]) -> bool:
        try:
            message = messages.parse(frames)
        except messages.WireError:
            return False
        require(len(message.session) == messages.SESSION_BYTES, "a session of another length")
        for number in (message.first, message.last, message.next, message.credit):
            require(type(number) is int and 0 <= number < 1 << 63, f"number {number!r}")
        require(
            type(message.reason) is str and len(message.reason) <= messages.REASON_CHARS_MAX, "a reason without bound"
        )
        require(type(message.info) is dict and type(message.sender) is bytes, "info or sender")
        return True


class FileWire:
    """file_wire.parse: likewise; a digest has 32 bytes, and a chunk is within its limit."""

    def make(self, chooser: random.Random) -> list[bytes]:
        return hostile_frames(chooser, "file_wire")

    def check(self, frames: list[bytes]) -> bool:
        try:
            message = file_messages.parse(frames)
        except messages.WireError:
            return False
        require(len(message.session) == messages.SESSION_BYTES, "a session of another length")
        for number in (message.bytes, message.offset, message.credit, message.wait_ms):
            require(type(number) is int and 0 <= number < 1 << 62, f"number {number!r}")
        require(len(message.digest) in (0, 32) and len(message.sender) in (0, 16), "a name of another length")
        require(len(message.payload) <= FILE_CHUNK_BYTES, "a chunk without bound")
        require(
            type(message.reason) is str and len(message.reason) <= messages.REASON_CHARS_MAX, "a reason without bound"
        )
        require(type(message.info) is dict, "info")
        return True


class Questions:
    """questions.parse: likewise, and DuckDB gets plain values and valid text."""

    def make(self, chooser: random.Random) -> list[bytes]:
        return hostile_frames(chooser, "questions")

    def check(self, frames: list[bytes]) -> bool:
        try:
            question = query_messages.parse(frames)
        except query_messages.QueryProtocolError as error:
            require(len(error.id) in (0, query_messages.ID_BYTES), "an id of another length")
            return False
        question.sql.encode()
        require(query_messages.is_plain(question.params), "parameters that are not plain")
        require(0 < question.timeout_s <= query_messages.QUERY_TIMEOUT_S, "a timeout without bound")
        require(
            len(question.message) <= query_messages.MESSAGE_CHARS_MAX and "\n" not in question.message, "not one line"
        )
        return True


def hostile_frames(chooser: random.Random, family: str) -> list[bytes]:
    """Return the frames of a message with something wrong: its fields, its bytes, or how many frames there are."""
    head = pick(chooser, samples.heads(family))
    act = chooser.random()
    if act < 0.7:
        head = pack_hostile(mutate_value(chooser, unpack(head)))
    elif act < 0.9:
        head = mutate_bytes(chooser, head)
    frames = [head]
    if head[1:2] == {"wire": b"\x03", "file_wire": b"\x0a", "questions": b"\x02"}[family]:
        frames.append(b"payload")
    if chooser.random() < 0.08:
        frames = pick(chooser, ([], [b""], [head, head], [head, b"", b""], [b"", head], [head + head]))
    return frames


class Scan:
    """record.scan and read_one: each byte is in one record, in one damage, or unused; numbers grow."""

    def make(self, chooser: random.Random) -> bytes:
        parts = []
        number = int(chooser.random() * 5)
        for _ in range(1 + int(chooser.random() * 5)):
            kind, payload = pick(chooser, _PAYLOADS)
            if chooser.random() < 0.4:
                parts.append(hostile_record(chooser, kind, number, payload))
            else:
                parts.append(frame(kind, number, payload))
            number += 1 + int(chooser.random() * 2)
        return b"".join(parts)

    def check(self, data: bytes) -> bool:
        sealed, cut = data[-1:] != b"\0", len(data) % 3 == 0
        last, end, found = -1, 0, 0
        for item in scan_records(data, sealed=sealed, cut=cut):
            if isinstance(item, CorruptRange):
                require(end <= item.start < item.end <= len(data), "damage that overlaps")
                end = item.end
                continue
            found += 1
            require(last < item.number < NUMBER_LIMIT, f"number {item.number} behind {last}")
            require(end <= item.end - len(item.payload) and item.end <= len(data), "a record that overlaps")
            again = frame(item.kind, item.number, bytes(item.payload), item.version)
            require(isinstance(parse_record(memoryview(again), 0), Record), "a record that cannot be written again")
            last, end = item.number, item.end
        require(cut or not sealed or end == len(data) or not any(data[end:]), "unreported bytes")
        return found > 0


_PAYLOADS: tuple[tuple[int, bytes], ...] = (
    *((int(kind), payload) for kind, payload in RECORD_PAYLOADS.items() if kind != Kind.BLOCK),
    (int(Kind.EVENT), b""),
    (99, b"of the future"),
)


def hostile_block(chooser: random.Random) -> bytes:
    """Return a block with something wrong: in its header, a column, its prefix, or the events it was made of."""
    act = chooser.random()
    if act < 0.2:
        return built_block(chooser)
    base = samples.block()
    if act < 0.3:
        return mutate_bytes(chooser, base)
    start = 8 + int.from_bytes(base[:4], "little")
    header, area = unpack(base[8:start]), bytearray(base[start + -start % 8 :])
    if act < 0.75:
        for _ in range(1 + int(chooser.random() * 2)):
            header = mutate_value(chooser, header)
            if not isinstance(header, list):
                break
    elif act < 0.9:
        at = 4 * int(chooser.random() * (len(area) // 4))
        number = pick(chooser, (0, 1, 2, 5, 9, 255)) if act < 0.8 else integer(chooser) & 0xFFFFFFFFFFFFFFFF
        area[at : at + 8] = struct.pack("<Q", number)[: len(area) - at]
    else:
        group = pick(chooser, header[2])
        columns = group[3]
        first, second = pick(chooser, columns), pick(chooser, columns)
        first[2:] = second[2:]  # two columns in one place
        if act > 0.98:
            ranges = [bounds for _, bounds in header[1]]
            header[1] = [[bytes([n]) * 16, []] for n in range(3)]
            for bounds in ranges:
                for at in range(0, len(bounds), 2):
                    pick(chooser, header[1])[1] += bounds[at : at + 2]
        elif act > 0.95:
            header[1][0][1] = pick(
                chooser, ([0, 1 << 62], [0, 4, 2, 6], [4, 0], [-1, 3], [0, 0, 0, 0], [], [1], [0, 4.0])
            )
    packed = pack_hostile(header)
    prefix = struct.pack("<IHH", len(packed), 1 if act < 0.97 else integer(chooser) & 0xFFFF, 0)
    return prefix + packed + bytes(-(8 + len(packed)) % 8) + area


def built_block(chooser: random.Random) -> bytes:
    """Return a sound block of hostile events: what an agent builds from ranks' events."""
    builder = BlockBuilder()
    seq = max(0, integer(chooser)) % NUMBER_LIMIT if chooser.random() < 0.2 else int(chooser.random() * 100)
    for _ in range(1 + int(chooser.random() * 6)):
        event = hostile_event(chooser) if chooser.random() < 0.6 else pick(chooser, samples.events())
        builder.add(PRODUCER_A if chooser.random() < 0.5 else PRODUCER_B, min(seq, NUMBER_LIMIT - 1), event)
        seq += int(chooser.random() * 3)
    return builder.build(TS)


class Blocks:
    """block_decoder.decode_block: the rows of its ranges, in columns of one length; or BlockError."""

    def make(self, chooser: random.Random) -> bytes:
        return hostile_block(chooser)

    def check(self, data: bytes) -> bool:
        try:
            block = decode_block(data)
        except BlockError:
            return False
        check_block(block)
        return True


def check_block(block: Block) -> None:
    """Compare a decoded block with PROTOCOL.md, the slow way."""
    rows: Counter[tuple[int, int]] = Counter()
    for group in block.groups:
        n_rows = len(group.seq)
        require(n_rows == len(group.ts) == len(group.producer) > 0, "columns of different length")
        require(all(len(column) == n_rows for column in group.columns.values()), "a column of another length")
        rows.update(zip(group.producer.tolist(), group.seq.tolist(), strict=True))
        if group.keys_bin:
            keys = unpack(group.keys_bin)
            require(group.columns["values"].shape == (n_rows, len(keys)), "a matrix of another shape")
            require(len(set(keys)) == len(keys) <= KEYS_MAX, "keys repeat")
            require(
                max(len(k.encode("utf-8", "surrogateescape")) for k in keys) <= KEY_BYTES_MAX, "a key without bound"
            )
    named = {
        (index, seq): 1
        for index, (_, ranges) in enumerate(block.producers)
        for first, last in ranges
        for seq in range(first, last + 1)
    }
    require(rows == named, "other rows than the seqs that are named")
    require(len({producer for producer, _ in block.producers}) == len(block.producers), "a producer twice")
    plain = [row for row in block_to_rows(block) if isinstance(row[2], bytes)]
    builder = BlockBuilder()
    for row in plain:
        builder.add(*row)
    if plain:
        again = block_to_rows(decode_block(builder.build(block.created_ts)))
        require([row[:2] for row in again] == [row[:2] for row in plain], "rows get lost when a block is built again")
        opaque = any(group.kind == OPAQUE for group in block.groups)
        require(opaque or again == plain, "rows change when a block is built again")


class Frames:
    """The sampler's frames: values, bad frames that are counted, or FrameError; never more memory than a frame."""

    _VALUES = (
        ["sample", TS, "GPU-0", ["gpu.util"], [1.0]],
        ["line", "a line"],
        ["stale", "GPU-0"],
        ["pids", [1, 2, 3]],
        ["period", 1.0],
    )

    def make(self, chooser: random.Random) -> list[bytes]:
        stream = b""
        for _ in range(1 + int(chooser.random() * 4)):
            value = mutate_value(chooser, unpack(pack(pick(chooser, self._VALUES))))
            payload = pack_hostile(value)
            size = len(payload) if chooser.random() < 0.9 else integer(chooser) & 0xFFFFFFFF
            stream += struct.pack("<I", size) + payload
        if chooser.random() < 0.1:
            stream = mutate_bytes(chooser, stream)
        cut = int(chooser.random() * len(stream))
        return [stream[:cut], stream[cut:]]

    def check(self, parts: list[bytes]) -> bool:
        reader = FrameReader()
        values = []
        try:
            for part in parts:
                values += reader.feed(part)
        except FrameError:
            return False
        require(len(reader._buffer) <= FRAME_BYTES_MAX + 4, "a buffer without bound")
        for value in values:
            pack(value)
        return bool(values)


class Heads:
    """Head pages and segment headers: None for other bytes; an identity only with known names and types."""

    def make(self, chooser: random.Random) -> bytes:
        if chooser.random() < 0.3:
            return mutate_bytes(chooser, samples.vector("segment-header"), (b"CHIPSEG\x01", bytes(8), b"\xff" * 8))
        identity = unpack(_IDENTITY)
        packed = pack_hostile(mutate_value(chooser, identity))
        number = integer(chooser) & 0xFFFFFFFFFFFFFFFF
        data = encode_head(PRODUCER_A, packed, number, integer(chooser) & 0xFFFFFFFFFFFFFFFF, number & 0xFF)
        return (
            data if chooser.random() < 0.7 else mutate_bytes(chooser, data, (*TOKENS[:4], b"CHIPJRN\x01", b"\xff" * 4))
        )

    def check(self, data: bytes) -> bool:
        header = decode_header(data)
        if header is not None:
            again = encode_header(SegmentHeader(header.owner, header.base, header.created_us))
            require(decode_header(again) == header, "a segment header changes when it is written again")
        head = decode_head(data)
        if head is None:
            return header is not None
        require(len(head.producer) == 16, "a producer of another length")
        require(select_typed(head.identity, IDENTITY_FIELDS) == head.identity, "an identity with a wrong type")
        return bool(head.identity)


_RECEIPT = pack([TS, [[SENDER, 3, 6, 3, None], [PRODUCER_B, 0, 2, 2, ["node-a", "gpu*"]]]])
_IDENTITY = pack(unpack(samples.vector("event-identity"))[2])


class Receipts:
    """What a start reads from the log: the numbers for the delivery machines, lost producers, or nothing."""

    def make(self, chooser: random.Random) -> tuple[int, bytes]:
        kind = chooser.choice((Kind.RECEIPT, Kind.RECEIPT, Kind.SENDERS, Kind.PRESENCE))
        payload = RECORD_PAYLOADS[kind] if chooser.random() < 0.5 or kind != Kind.RECEIPT else _RECEIPT
        if chooser.random() < 0.2:
            return kind, mutate_bytes(chooser, payload)
        return kind, pack_hostile(mutate_value(chooser, unpack(payload)))

    def check(self, data: tuple[int, bytes]) -> bool:
        kind, payload = data
        receipt = decode_receipt(payload, 40)
        if receipt is not None:
            require(-(1 << 62) < receipt.received_us < 1 << 62, f"a receipt of the time {receipt.received_us}")
            for number in (0, 35, 39, 40, 1 << 62):
                speaker = receipt.speaker_of(number)
                require(speaker is None or type(speaker.sender) is bytes, "a speaker that is none")
            receipt.uncommitted((30, 33, 34, 35))
        good = frame(Kind.RECEIPT, 9, pack([TS, [[SENDER, 3, 6, 0, None]]]))
        said = frame(Kind.PRESENCE, 2, pack([PRODUCER_B, False, 12_000_000, "node-a", "boot"]))
        lost = recover_lost(scan_records(frame(kind, 1, payload) + said + good))
        require(PRODUCER_B in lost, "a good presence behind a bad record was not read")
        require(all(type(sender) is bytes and len(sender) == 16 for sender in lost), f"who is lost: {lost!r}")
        found = recover_senders(scan_records(frame(kind, 1, payload) + good))
        for sender, number in found.items():
            require(type(sender) is bytes and len(sender) == 16, f"sender {sender!r}")
            require(type(number) is int and 0 <= number < NUMBER_LIMIT, f"next number {number!r}")
        require(found.get(SENDER, 0) >= 6, "a good receipt behind a bad record was not read")
        return receipt is not None


class Pipe:
    """What the index reads from its query parser: a verdict, or nothing, which replaces the child."""

    class _Child:
        def __init__(self, data: bytes) -> None:
            read, write = os.pipe()
            os.write(write, data[:65_536])
            os.close(write)
            self.stdout = open(read, "rb", buffering=0)  # noqa: SIM115 - closed by check

    def make(self, chooser: random.Random) -> bytes:
        payload = pack_hostile(mutate_value(chooser, ["refused", "a message"]))
        size = len(payload) if chooser.random() < 0.8 else integer(chooser) & 0xFFFFFFFF
        data = struct.pack("<I", size) + payload
        return data if chooser.random() < 0.8 else mutate_bytes(chooser, data)

    def check(self, data: bytes) -> bool:
        child = self._Child(data)
        try:
            verdict = SqlGuardProcess._read(child, 1.0)  # type: ignore[arg-type]
        finally:
            child.stdout.close()
        require(verdict is None or all(type(word) is str for word in verdict[:2]), f"a verdict of {verdict!r}")
        return verdict is not None


def _places(data: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return (bodies, sizes) of an Arrow stream: from where to where, and where with how many bytes."""
    from chiplog_client.results.arrow_validation import _pairs
    from chiplog_schemas.query.arrow_messages import field_at, message_head

    bodies, sizes, at = [], [], 0
    while struct.unpack_from("<i", data, at + 4)[0]:
        size = struct.unpack_from("<i", data, at + 4)[0]
        flat = memoryview(data)[at + 8 : at + 8 + size]
        kind, header, body_size = message_head(flat)
        sizes.append((at + 4, 4))
        if kind == 3 and header is not None:
            table = struct.unpack_from("<I", flat)[0]
            body_at, buffers_at = field_at(flat, table, 3), field_at(flat, header, 2)
            assert body_at is not None and buffers_at is not None
            sizes.append((at + 8 + body_at, 8))
            vector = at + 8 + buffers_at + struct.unpack_from("<I", flat, buffers_at)[0]
            sizes += [(vector + 4 + 8 * n, 8) for n in range(2 * len(list(_pairs(flat, buffers_at))))]
            bodies.append((at + 8 + size, at + 8 + size + body_size))
        at += 8 + size + body_size
    return bodies, sizes


class Arrow:
    """What a client makes of an answer's stream whose sizes or bodies lie: a table, or QueryError."""

    def __init__(self) -> None:
        import duckdb
        from arro3.io import write_ipc_stream

        query = "SELECT i, i / 3 AS x, 'text ' || i AS t, [i, i] AS l, now()::TIMESTAMP AS ts FROM range(50) r(i)"
        self._streams = []
        for compression in (None, "lz4"):
            sink = io.BytesIO()
            write_ipc_stream(duckdb.sql(query), sink, compression=compression)
            self._streams.append((sink.getvalue(), *_places(sink.getvalue())))

    def make(self, chooser: random.Random) -> bytes:
        data, bodies, sizes = pick(chooser, self._streams)
        act = chooser.random()
        if act < 0.15:
            return data[: int(chooser.random() * len(data))]
        if act < 0.2:
            return data + data if act < 0.18 else mutate_bytes(chooser, data[:8]) + data[8:]
        changed = bytearray(data)
        number = max(-(1 << 63), min(integer(chooser), (1 << 63) - 1))
        if act < 0.6:
            at, n_bytes = pick(chooser, sizes)
            # Whole words only: arrow-rs ends the process on a buffer that ends within a value, see test_bombs.
            changed[at : at + n_bytes] = struct.pack("<q", number & ~7)[:n_bytes]
        else:
            start, end = pick(chooser, bodies)
            at = start + int(chooser.random() * max(1, end - start - 8))
            changed[at : at + 8] = struct.pack("<q", number)
        return bytes(changed)

    def check(self, data: bytes) -> bool:
        try:
            result = Result(data)
        except QueryError:
            return False
        require(len(result.arrow()) == len(result) >= 0, "another number of rows")
        return True


DECODERS: dict[
    str, tuple[type[Target], int]
] = {  # and how many inputs make a round of a soak, see SHARE in test_decoders.py
    "codec": (Codec, 23_000),
    "scan": (Scan, 10_000),
    "wire": (Wire, 16_500),
    "file_wire": (FileWire, 10_000),
    "questions": (Questions, 13_000),
    "events": (Events, 15_000),
    "blocks": (Blocks, 6_500),
    "frames": (Frames, 6_500),
    "heads": (Heads, 6_500),
    "receipts": (Receipts, 5_000),
    "pipe": (Pipe, 1_000),
    "arrow": (Arrow, 500),
}
