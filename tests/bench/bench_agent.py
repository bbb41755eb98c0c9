"""The agent's cost from ZeroMQ to synced block, in events of ten values per second of one core."""

import os
import statistics
import struct
import tempfile
import time
from pathlib import Path

import msgpack
import numpy as np
import zmq

from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.protocol import messages
from chiplog_schemas.storage.record import encode as encode_record
from tests.bench.figure import Figure, Node, cpu_s

EVENTS = 300_000
SLICE_EVENTS = 3_000  # about 750 KB: one send of a busy rank
RANKS = 8
CREDIT_SLICES = 8  # per rank, on their way


def slices(producer: int) -> list[tuple[int, int, bytes]]:
    """One rank's journal as (first, last, bytes)."""
    keys = pack([f"train/metric_{i}" for i in range(10)])
    random = np.random.default_rng(producer)
    result = []
    per_rank = EVENTS // RANKS
    for first in range(0, per_rank, SLICE_EVENTS):
        last = min(first + SLICE_EVENTS, per_rank) - 1
        values = random.random((last - first + 1, 10))
        records = [
            encode_record(1, seq, encode(EventKind.METRICS, 1_790_000_000_000_000 + seq, seq, keys, row.tobytes()))
            for seq, row in zip(range(first, last + 1), values, strict=True)
        ]
        result.append((first, last, b"".join(records)))
    return result


def push(address: str, journals: list[list[tuple[int, int, bytes]]]) -> None:
    """Be all ranks at once: send within credit until everything was acknowledged."""
    context = zmq.Context()
    poller = zmq.Poller()
    ranks = {}
    for journal in journals:
        socket = context.socket(zmq.DEALER)
        socket.connect(address)
        session, sender = os.urandom(8), os.urandom(16)
        socket.send_multipart(messages.hello(session, sender, 0, {}))
        poller.register(socket, zmq.POLLIN)
        ranks[socket] = [session, list(journal), 0, -1, journal[-1][1] + 1]
    open_ranks = len(ranks)
    while open_ranks:
        for socket, _ in poller.poll(1000):
            message = messages.parse(socket.recv_multipart())
            state = ranks[socket]
            if message.kind == messages.MessageKind.ACK and message.next >= state[4]:
                open_ranks -= 1
                poller.unregister(socket)
                continue
            acked = sum(1 for _, last, _ in journals[0][: state[2]] if last < message.next)
            while state[2] < len(state[1]) and state[2] - acked < CREDIT_SLICES:
                first, last, payload = state[1][state[2]]
                socket.send_multipart(messages.data(state[0], first, last, payload))
                state[2] += 1
    for socket in ranks:
        socket.close(0)
    context.term()


def bare_loop(journal: list[tuple[int, int, bytes]]) -> float:
    """The yardstick: msgpack's own loop over bare maps of the same events, grouped and made into numpy columns, no
    records, no checksums, no sockets, no disk. Events per core-second."""
    keys = [f"train/metric_{i}" for i in range(10)]
    random = np.random.default_rng(1)
    count = 20_000
    data = b"".join(
        msgpack.packb([i, i, dict(zip(keys, row, strict=True))])
        for i, row in enumerate(random.random((count, 10)).tolist())
    )
    begun = time.process_time()
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    groups: dict[tuple[str, ...], list[tuple[int, int, list[float]]]] = {}
    for step, ts, values in unpacker:
        groups.setdefault(tuple(values), []).append((step, ts, list(values.values())))
    for rows in groups.values():
        np.array([row[2] for row in rows]), np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    return count / (time.process_time() - begun)


def once() -> tuple[float, float]:
    journals = [slices(rank) for rank in range(RANKS)]
    with tempfile.TemporaryDirectory() as root, Node(Path(root), "--no-stats", collector=False) as node:
        pid = node.processes["agent"].pid
        before, begun = cpu_s(pid), time.monotonic()
        push(node.place.agent_address, journals)
        spent, wall = cpu_s(pid) - before, time.monotonic() - begun
    return EVENTS / spent, struct.calcsize("d") * 10 * EVENTS / wall


def measure() -> list[Figure]:
    rates = [once()[0] for _ in range(5)]
    bare = statistics.median(bare_loop([]) for _ in range(5))
    beside = f"bare msgpack → group → numpy loop {bare:,.0f}/s; runs {min(rates):,.0f}–{max(rates):,.0f}"
    return [
        Figure(
            "agent, ZeroMQ to synced block",
            statistics.median(rates),
            "events/core-s",
            at_least=150_000,
            yardstick=beside,
        )
    ]
