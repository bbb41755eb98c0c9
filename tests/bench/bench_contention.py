"""What readers cost the writers: DATA to ACK, and the index's commits, while SQL clients do their worst."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zmq

from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.protocol import messages
from chiplog_schemas.query import query_messages
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as encode_record
from tests.bench.figure import Figure, Node, fresh_node, percentile, start_python

AGENTS = 8
PRODUCERS = 8
KEYS = 20
SECONDS = 8.0
PAUSE_S = 0.05
FOR_EVER = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE (a.range * 7 + b.range) % 13 = 3"
DASHBOARD = "SELECT label, key, count(*), avg(value) FROM metrics GROUP BY ALL"
CLIENTS = 16
# All clients in one process: like other machines they query again at once, and leave the cores to the collector.
LOAD = f"""
import os, sys, zmq
from chiplog_schemas.query import query_messages
context, poller = zmq.Context(), zmq.Poller()
def ask(socket):
    socket.send_multipart(query_messages.request(os.urandom(8), {DASHBOARD!r}, None, 30.0))
for _ in range({CLIENTS}):
    socket = context.socket(zmq.DEALER)
    socket.connect(sys.argv[1])
    poller.register(socket, zmq.POLLIN)
    ask(socket)
answered = 0
print(0, 0, flush=True)
while True:
    for socket, _ in poller.poll():
        answer = query_messages.parse(socket.recv_multipart())
        assert answer.kind == query_messages.QueryMessageKind.RESULT, answer
        answered += 1
        print(answered, flush=True)
        ask(socket)
"""


class Agent:
    """A simulated node: builds small blocks and sends each, as its spool would."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, number: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.connect(address)
        self.session = os.urandom(8)
        self.number = 0
        self.producers = [os.urandom(16) for _ in range(PRODUCERS)]
        self.node = f"node{number}"
        self.builder = BlockBuilder()
        for local, producer in enumerate(self.producers):
            rank = number * PRODUCERS + local
            identity = {"role": "rank", "run_id": "contention", "label": f"rank{rank}", "rank": rank, "node": self.node}
            self.builder.add(
                producer, 0, encode(EventKind.IDENTITY, 0, identity | {"primary": rank == 0, "launch": "x"})
            )
        self.seq = 1
        self.socket.send_multipart(messages.hello(self.session, os.urandom(16), 0, {"node": self.node}))

    def send(self, keys: bytes, values: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> None:
        now_us = time.time_ns() // 1000
        for producer, row in zip(self.producers, values, strict=True):
            self.builder.add(producer, self.seq, encode(EventKind.METRICS, now_us, self.seq, keys, row.tobytes()))
        self.seq += 1
        record = encode_record(Kind.BLOCK, self.number, self.builder.build(now_us))
        self.socket.send_multipart(messages.data(self.session, self.number, self.number, record))
        self.number += 1


def latencies_of(node: Node) -> tuple[list[float], list[float]]:
    """Send blocks for a while; return (seconds from DATA to its ACK, seconds between changes of the index's WAL)."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    agents = [Agent(context, node.place.collector_address, number) for number in range(AGENTS)]
    keys, chooser = pack([f"train/metric_{i}" for i in range(KEYS)]), np.random.default_rng(1)
    time.sleep(0.5)
    stop = threading.Event()
    gaps: list[float] = []
    watcher = threading.Thread(target=watch, args=(Path(f"{node.place.index}.wal"), stop, gaps))
    watcher.start()
    latencies: list[float] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for agent in agents:
            while agent.socket.poll(0):
                agent.socket.recv_multipart()
            sent = time.perf_counter()
            agent.send(keys, chooser.random((PRODUCERS, KEYS)))
            if agent.socket.poll(10_000):
                latencies.append(time.perf_counter() - sent)
        time.sleep(PAUSE_S)
    stop.set()
    watcher.join()
    for agent in agents:
        agent.socket.close(0)
    context.term()
    return latencies, gaps


def watch(path: Path, stop: threading.Event, gaps: list[float]) -> None:
    """Note the time between two commits: each makes the write-ahead log longer, a checkpoint makes it short."""
    size, changed = -1, time.perf_counter()
    while not stop.is_set():
        try:
            now_size = path.stat().st_size
        except FileNotFoundError:  # after a checkpoint
            now_size = 0
        if now_size != size:
            gaps.append(time.perf_counter() - changed)
            size, changed = now_size, time.perf_counter()
        time.sleep(0.002)


def measure() -> list[Figure]:
    figures: list[Figure] = []
    with fresh_node(agent=False) as node:
        latencies_of(node)  # the target of the queries
        quiet, quiet_gaps = latencies_of(node)
        for name, start in (
            (f"{CLIENTS} SQL clients", clients),
            ("2 runaway queries", runaways),
            ("readers that never read", deaf),
        ):
            stop = start(node)
            time.sleep(1.0)
            busy, gaps = latencies_of(node)
            load = stop()
            time.sleep(2.0)
            ratio = percentile(busy, 0.99) / percentile(quiet, 0.99)
            beside = (
                f"DATA to ACK p50 / p99 {percentile(busy, 0.5) * 1e3:.1f} / {percentile(busy, 0.99) * 1e3:.1f} ms, "
                f"quiet {percentile(quiet, 0.5) * 1e3:.1f} / {percentile(quiet, 0.99) * 1e3:.1f}; commits p99 apart "
                f"{percentile(gaps, 0.99) * 1e3:.0f} ms, quiet {percentile(quiet_gaps, 0.99) * 1e3:.0f}{load}"
            )
            figures.append(Figure(f"ingest p99 beside {name}", ratio, "times", at_most=2.0, yardstick=beside))
    return figures


def clients(node: Node) -> Callable[[], str]:
    process = start_python(LOAD, node.environ, node.place.query_address)

    def stop() -> str:
        process.kill()
        said, _ = process.communicate()
        return f"; {said.split()[-2]} queries answered"

    return stop


def runaways(node: Node) -> Callable[[], str]:
    return askers(node, FOR_EVER, 2)


def deaf(node: Node) -> Callable[[], str]:
    return askers(node, "SELECT range, hash(range), repeat('x', 10) FROM range(4000000)", 6)


def askers(node: Node, sql: str, n: int) -> Callable[[], str]:
    """Ask, and never read the answers."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(node.place.query_address)
    for _ in range(n):
        socket.send_multipart(query_messages.request(os.urandom(8), sql, None, SECONDS + 2))

    def stop() -> str:
        socket.close()
        context.term()
        return ""

    return stop
