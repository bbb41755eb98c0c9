"""The index beside a bare sort-and-insert loop, the receiver beside plain write and fdatasync."""

import os
import statistics
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import zmq

from chiplog_collector.index.database import Database
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.receiver.commit import CommitBuilder
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import INDEX_FLUSH_ROWS
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.protocol import messages
from chiplog_schemas.storage.record import Kind, parse_record
from chiplog_schemas.storage.record import encode as encode_record
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.bench.figure import Figure, Node, cpu_s

KEYS = 10
PRODUCERS = 8
BLOCK_EVENTS = 4_000  # about half a megabyte: a busy node's block
FLUSHES = 10
POINTS = FLUSHES * INDEX_FLUSH_ROWS


def blocks(n_events: int, block_events: int) -> list[bytes]:
    """Blocks of one node whose ranks log the same keys, steps interleaved."""
    keys = pack([f"train/metric_{i}" for i in range(KEYS)])
    producers = [os.urandom(16) for _ in range(PRODUCERS)]
    random = np.random.default_rng(7)
    result = []
    builder = BlockBuilder()
    for event in range(n_events):
        step = event // PRODUCERS
        payload = encode(
            EventKind.METRICS, 1_790_000_000_000_000 + 50_000 * step, step, keys, random.random(KEYS).tobytes()
        )
        builder.add(producers[event % PRODUCERS], step, payload)
        if builder.n_events == block_events:
            result.append(builder.build(0))
    return result


def write_log(made: list[bytes], directory: Path) -> SegmentLog:
    """Write the log of a collector that has acknowledged each of these blocks. Its ID is zeros."""
    log, intake = SegmentLog(directory, bytes(16)), CommitBuilder({})
    for number, block in enumerate(made):
        for entry in intake.add_slice(bytes(16), number, number, encode_record(Kind.BLOCK, number, block)):
            assert entry.record is not None
            log.append_record(entry.record)
        receipt = intake.receipt_record(0)
        log.append(receipt.kind, receipt.payload)
        intake.committed()
    log.commit()
    return log


def index_rate(made: list[bytes], root: Path) -> float:
    """Points per second from the log on disk to committed rows."""
    (root / "collector").mkdir()
    log = write_log(made, root / "collector" / "log")
    database = Database(root / "index.duckdb", bytes(16))
    follower = LogFollower(database, root / "collector" / "log")
    begun = time.perf_counter()
    while database.next_number < log.next_number:
        follower.step(log.next_number)
    spent = time.perf_counter() - begun
    row = database.connection.execute("SELECT count(*) FROM base.metric_facts").fetchone()
    assert row is not None and row[0] == len(made) * BLOCK_EVENTS * KEYS
    database.close()
    log.close()
    return row[0] / spent


def bare_rate(root: Path) -> float:
    """The yardstick: sort the same rows by (key, producer, step), insert them from numpy columns, commit each flush."""
    connection = duckdb.connect(str(root / "bare.duckdb"))
    connection.execute(
        "CREATE TABLE metrics (producer INTEGER, key INTEGER, step BIGINT, seq BIGINT, ts TIMESTAMP, value DOUBLE)"
    )
    random = np.random.default_rng(7)
    flushes = []
    events = INDEX_FLUSH_ROWS // KEYS
    for flush in range(FLUSHES):
        step = (np.arange(events) + flush * events) // PRODUCERS
        rows = {
            "producer": np.repeat((np.arange(events) % PRODUCERS).astype(np.int32), KEYS),
            "key": np.tile(np.arange(KEYS, dtype=np.int32), events),
            "step": np.repeat(step, KEYS),
            "seq": np.repeat(step, KEYS),
            "ts": np.repeat((1_790_000_000_000_000 + 50_000 * step).view("datetime64[us]"), KEYS),
            "value": random.random(INDEX_FLUSH_ROWS),
        }
        flushes.append(rows)
    begun = time.perf_counter()
    for rows in flushes:
        order = np.lexsort((rows["step"], rows["producer"], rows["key"]))
        incoming = {name: column[order] for name, column in rows.items()}
        connection.execute("BEGIN")
        connection.register("incoming", incoming)
        connection.execute("INSERT INTO metrics SELECT * FROM incoming")
        connection.unregister("incoming")
        connection.execute("COMMIT")
    spent = time.perf_counter() - begun
    connection.close()
    return POINTS / spent


def receiver_rate(pieces: list[bytes]) -> tuple[float, float]:
    """(bytes per second of wall time, of receiver's CPU time) from sockets to acknowledged."""
    with tempfile.TemporaryDirectory() as root:
        node = Node(Path(root), agent=False)
        try:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            socket = context.socket(zmq.DEALER)
            socket.connect(node.place.collector_address)
            session = os.urandom(8)
            socket.send_multipart(messages.hello(session, os.urandom(16), 0, {}))
            socket.recv_multipart()
            pid = node.processes["collector"].pid
            cpu, begun = cpu_s(pid), time.perf_counter()
            sent = acked = 0
            while acked < len(pieces):
                while sent < len(pieces) and sent - acked < 16:
                    socket.send_multipart(messages.data(session, sent, sent, pieces[sent]), copy=False)
                    sent += 1
                message = messages.parse(socket.recv_multipart())
                acked = max(acked, message.next)
            wall, cpu = time.perf_counter() - begun, cpu_s(pid) - cpu
            socket.close(0)
            context.term()
        finally:
            os.kill(node.processes["collector"].pid, 9)  # the index need not apply it all
            node.processes["collector"].wait()
    total = sum(map(len, pieces))
    return total / wall, total / cpu


def write_rate(pieces: list[bytes]) -> float:
    """The yardstick: the same pieces by write and fdatasync into a file, four megabytes a sync."""
    with tempfile.NamedTemporaryFile() as file:
        begun = time.perf_counter()
        for first in range(0, len(pieces), 4):
            os.writev(file.fileno(), pieces[first : first + 4])
            os.fdatasync(file.fileno())
        return sum(map(len, pieces)) / (time.perf_counter() - begun)


def receiver_pieces(count: int) -> list[bytes]:
    big = b"".join(blocks(8_000, 8_000))
    return [encode_record(Kind.BLOCK, number, big) for number in range(count)]


def measure() -> list[Figure]:
    made = blocks(POINTS // KEYS, BLOCK_EVENTS)
    ours, bare = [], []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as root:
            bare.append(bare_rate(Path(root)))
            ours.append(index_rate(made, Path(root)))
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    pieces = receiver_pieces(600)
    assert not isinstance(parse_record(memoryview(pieces[0]), 0), str)
    rates, plain, per_cpu = [], [], []
    for _ in range(3):
        plain.append(write_rate(pieces))
        rate, cpu_rate = receiver_rate(pieces)
        rates.append(rate)
        per_cpu.append(cpu_rate)
    wall, beside = statistics.median(rates), statistics.median(plain)
    bare_rows = f"bare sort + insert {statistics.median(bare) / 1e6:.2f} M rows/s"
    plain_bytes = f"plain write + fdatasync {beside / 1e6:,.0f} MB/s"
    return [
        Figure(
            "index, logged block to committed rows",
            100 * ratio,
            "% of bare",
            at_least=60,
            yardstick=f"{statistics.median(ours) / 1e6:.2f} M rows/s; {bare_rows}",
        ),
        Figure(
            "receiver, socket to synced log",
            wall / 1e6,
            "MB/s",
            at_least=min(300.0, 0.8 * beside / 1e6),
            yardstick=f"{plain_bytes}; per core-second {statistics.median(per_cpu) / 1e6:,.0f} MB",
        ),
    ]
