"""1,250 simulated agents with one small block a second each: the CPU of receiver and index together."""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zmq

from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.protocol import messages
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as encode_record
from tests.bench.figure import Figure, Node, cpu_s, tree

AGENTS = 1_250
PRODUCERS = 8
KEYS = 20
WARM_UP_S = 6
SECONDS = 20


class Agent:
    """A simulated node: builds its block a second and sends it, as its spool would."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, number: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.connect(address)
        self.session = os.urandom(8)
        self.number = 0
        self.due = time.monotonic() + random.random()
        self.producers = [os.urandom(16) for _ in range(PRODUCERS)]
        self.node = f"node{number}"
        self.builder = BlockBuilder()
        for local, producer in enumerate(self.producers):
            rank = number * PRODUCERS + local
            identity = {"role": "rank", "run_id": "cluster", "label": f"rank{rank}", "rank": rank, "node": self.node}
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
        self.due += 1.0


def simulate(address: str, seconds: float) -> None:
    """Simulate the agents. Runs in a separate process, so that its CPU time is not the collector's."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * AGENTS)
    keys = pack([f"train/metric_{i}" for i in range(KEYS)])
    values = np.random.default_rng(1)
    agents = [Agent(context, address, number) for number in range(AGENTS)]
    end = time.monotonic() + seconds
    sent = 0
    while (now := time.monotonic()) < end:
        for agent in agents:
            if agent.due <= now:
                agent.send(keys, values.random((PRODUCERS, KEYS)))
                sent += 1
                while agent.socket.poll(0):
                    agent.socket.recv_multipart()
        time.sleep(0.005)
    print(sent)
    for agent in agents:
        agent.socket.close(0)
    context.term()


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as root:
        node = Node(Path(root), agent=False)
        pids = tree(node.processes["collector"].pid)
        address, seconds = node.place.collector_address, WARM_UP_S + SECONDS + 1
        code = f"from tests.bench.bench_cluster import simulate; simulate({address!r}, {seconds})"
        simulator = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        time.sleep(WARM_UP_S)
        shares = []
        for _ in range(4):
            cpu, begun = [cpu_s(pid) for pid in pids], time.monotonic()
            time.sleep(SECONDS / 4)
            wall = time.monotonic() - begun
            shares.append([(cpu_s(pid) - before) / wall for pid, before in zip(pids, cpu, strict=True)])
        sent = int(simulator.communicate()[0])
        rate = sent / (WARM_UP_S + SECONDS + 1)
        node.stop()
    total = statistics.median(sum(share) for share in shares)
    parts = ", ".join(f"{statistics.median(column):.2f}" for column in zip(*shares, strict=True))
    return [
        Figure(
            "1,250 agents, a block a second each",
            total,
            "cores",
            at_most=1.0,
            yardstick=f"{rate:,.0f} blocks/s = {rate * PRODUCERS * KEYS:,.0f} points/s; receiver, index {parts}",
        )
    ]
