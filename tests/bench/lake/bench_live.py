"""Half a million rows a second, with a store and without: acknowledgements, flushes, and how soon others see them.

CHIPLOG_BENCH_MINUTES: of each of the two; 2 by default.
"""

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np
import zmq

import chiplog
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.protocol import messages
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as encode_record
from tests.bench.bench_contention import watch
from tests.bench.figure import Figure, Node, cpu_s, memory_bytes, percentile, tree

MINUTES = float(os.environ.get("CHIPLOG_BENCH_MINUTES", "2"))
RATE = 500_000
PRODUCERS = 8
KEYS = 25
TURN_S = 0.2
NEWEST = "SELECT max(step) AS step FROM metrics WHERE run_id = 'live' AND label = 'rank0' AND key = 'train/metric_0'"


@dataclass
class Load:
    """What was sent and when, and what came back."""

    sent: list[tuple[int, float]] = field(default_factory=list)  # (last step of a block, when)
    acknowledged_s: list[float] = field(default_factory=list)
    flush_gaps_s: list[float] = field(default_factory=list)
    seen: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # by reader: (newest step, when)
    publisher_us: float = 0.0
    index_bytes: int = 0

    def appeared_s(self, reader: str) -> list[float]:
        """Return how long each block took to be seen by a reader."""
        found, polls = [], iter(self.seen[reader])
        step, at = next(polls, (-1, 0.0))
        for last, sent in self.sent:
            while step < last:
                step, at = next(polls, (1 << 62, float("inf")))
            found.append(at - sent)
        return found


def measure() -> list[Figure]:
    loads = {}
    for has_store in (False, True):
        # The process of the reader without a collector ends a while later.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
            loads[has_store] = _run(Path(root), has_store=has_store)
    without, with_store = loads[False], loads[True]
    n_rows = len(with_store.sent) * int(RATE * TURN_S)
    rate = n_rows / (with_store.sent[-1][1] - with_store.sent[0][1])
    figures = [
        Figure("rows taken a second", rate, "rows/s", at_least=0.99 * RATE, yardstick=f"{MINUTES:g} minutes"),
        _ratio("acknowledgement p99 with a store", without.acknowledged_s, with_store.acknowledged_s, 1.2),
        _ratio("flush p99 with a store", without.flush_gaps_s, with_store.flush_gaps_s, 2.0),
        Figure("publisher, CPU of a row", with_store.publisher_us, "µs", at_most=1, yardstick="merges included"),
        Figure(
            "index, resident with a store",
            with_store.index_bytes / 1e6,
            "MB",
            yardstick=f"without {without.index_bytes / 1e6:.0f} MB",
        ),
    ]
    for reader in with_store.seen:
        waits = with_store.appeared_s(reader)
        figures.append(
            Figure(
                f"seen {reader}, p95",
                percentile(waits, 0.95),
                "s",
                at_most=15 if reader != "at its collector" else None,
                yardstick=f"median {percentile(waits, 0.5):.1f} s, asked every second",
            )
        )
    return figures


def _ratio(name: str, without: list[float], with_store: list[float], bar: float) -> Figure:
    bare, ours = percentile(without, 0.99), percentile(with_store, 0.99)
    return Figure(
        name, ours / bare, "times", at_most=bar, yardstick=f"{ours * 1e3:.0f} ms, without {bare * 1e3:.0f} ms"
    )


def _run(root: Path, *, has_store: bool) -> Load:
    load, lake = Load(), f"file://{root}/lake"
    os.environ.pop("CHIPLOG_STORE", None)
    os.environ["XDG_CACHE_HOME"] = str(root / "cache")
    for name in ("own", "other"):
        (root / name).mkdir()
    if has_store:
        os.environ["CHIPLOG_STORE"] = lake
    with Node(root / "own", agent=False) as own, Node(root / "other", agent=False) as other:
        readers: dict[str, Callable[[], chiplog.Client]] = {
            "at its collector": lambda: chiplog.connect(dir=str(own.place.root))
        }
        if has_store:
            readers["at another collector"] = lambda: chiplog.connect(dir=str(other.place.root))
            readers["by a reader without a collector"] = lambda: chiplog.connect(lake)
        with _asked(readers, load):
            with _watched(own, load):
                _send(own, load)
            time.sleep(20 if has_store else 2)
        processes = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in tree(own.processes["collector"].pid)}
        for pid, command in processes.items():
            if "chiplog_collector.store" in command:
                load.publisher_us = 1e6 * cpu_s(pid) / (len(load.sent) * RATE * TURN_S)
            if "chiplog_collector.index" in command:
                load.index_bytes = max(load.index_bytes, memory_bytes(pid)[0])
    return load


def _send(node: Node, load: Load) -> None:
    """Send a block each turn, as a node's spool would. Another process builds them, so that here answers are timed."""
    spawning = multiprocessing.get_context("spawn")
    blocks: Queue[tuple[int, bytes]] = spawning.Queue(1)
    builder = spawning.Process(target=_build, args=(blocks, n_turns := round(60 * MINUTES / TURN_S)), daemon=True)
    builder.start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(node.place.collector_address)
    session = os.urandom(8)
    socket.send_multipart(messages.hello(session, os.urandom(16), 0, {"node": "node0"}))
    assert socket.poll(20_000)
    waiting: dict[int, float] = {}
    block, due = blocks.get(), time.monotonic()
    for number in range(n_turns):
        socket.send_multipart(messages.data(session, number, number, block[1]))
        load.sent.append((block[0], time.monotonic()))
        waiting[number] = load.sent[-1][1]
        due += TURN_S
        while (rest := due - time.monotonic()) > 0 or socket.poll(0):
            if socket.poll(max(0, int(1000 * rest))):
                answer = messages.parse(socket.recv_multipart())
                if answer.kind == messages.MessageKind.ACK:
                    for done in [each for each in waiting if each < answer.next]:
                        load.acknowledged_s.append(time.monotonic() - waiting.pop(done))
        if number < n_turns - 1:
            block = blocks.get()
    socket.close(0)
    context.term()
    builder.join()


def _build(blocks: "Queue[tuple[int, bytes]]", n_blocks: int) -> None:
    """Put records, each with the last step of its block."""
    producers, keys = [os.urandom(16) for _ in range(PRODUCERS)], pack([f"train/metric_{i}" for i in range(KEYS)])
    builder, seq, n_steps = BlockBuilder(), 0, round(RATE * TURN_S / PRODUCERS / KEYS)
    chooser = np.random.default_rng(1)
    for rank, producer in enumerate(producers):
        identity = {"role": "rank", "run_id": "live", "label": f"rank{rank}", "rank": rank, "primary": not rank}
        builder.add(producer, 0, encode(EventKind.IDENTITY, time.time_ns() // 1000, identity | {"launch": "x"}))
    for number in range(n_blocks):
        now_us = time.time_ns() // 1000
        for _ in range(n_steps):
            seq += 1
            for producer, row in zip(producers, chooser.random((PRODUCERS, KEYS)).astype(np.float32), strict=True):
                values = row.astype(np.float64).tobytes()
                builder.add(producer, seq, encode(EventKind.METRICS, now_us, seq, keys, values))
        blocks.put((seq, encode_record(Kind.BLOCK, number, builder.build(now_us))))


@contextmanager
def _watched(node: Node, load: Load) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=watch, args=(Path(f"{node.place.index}.wal"), stop, load.flush_gaps_s))
    thread.start()
    yield
    stop.set()
    thread.join()


@contextmanager
def _asked(readers: dict[str, Callable[[], chiplog.Client]], load: Load) -> Iterator[None]:
    """Ask each reader every second for the newest step."""
    stop = threading.Event()

    def ask(name: str, connect: Callable[[], chiplog.Client]) -> None:
        with connect() as client:
            while not stop.wait(1.0):
                rows = client.sql(NEWEST).tuples()
                load.seen[name].append((rows[0][0] if rows[0][0] is not None else -1, time.monotonic()))

    load.seen = {name: [] for name in readers}
    threads = [threading.Thread(target=ask, args=reader) for reader in readers.items()]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()
