"""Garbage at every socket of real daemons, while a rank logs through them: its events arrive, the daemons keep running.

The oracle is a process with its own file. Afterwards the daemons have the same PIDs, only a few more descriptors, and
at most RSS_GROWTH_BYTES more memory, for the index in addition to the growth of its file.
"""

import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from chiplog_collector.index.follower import _FLUSH_BYTES
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import MIB, SESSIONS_MAX
from chiplog_schemas.model.events import IDENTITY_FIELDS
from chiplog_schemas.protocol import messages
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.transport.router import bind_router
from tests.fuzz.decoders import hostile_block, hostile_event, hostile_frames
from tests.fuzz.grammar import hostile_record, mutate_bytes, pick
from tests.support import oracle
from tests.support.node import Node
from tests.support.oracle import ORACLE
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_MS, WAIT_S, wait_until

RSS_GROWTH_BYTES = 64 * MIB
DESCRIPTORS_MORE = 64
SESSIONS = 2_200  # with as much about themselves as may be said: more than RSS_GROWTH_BYTES together
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x00NULL" + bytes(16) + b"\0" + bytes(31)  # ZMTP 3.0, no security, client
READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER"


class Watched:
    """The processes of a node: their PIDs, memory and descriptors."""

    def __init__(self, node: Node) -> None:
        assert node.agent is not None and node.collector is not None
        self._roots = (node.agent.pid, node.collector.pid)
        self._index = node.place.index
        self.before = self._look()
        self._index_bytes_before = self._index_bytes()

    def _index_bytes(self) -> int:
        """The memory that DuckDB may use: it grows with the data that the ranks of a long soak have stored.

        In addition, the index holds the records of one flush.
        """
        return sum(path.stat().st_size for path in self._index.parent.glob(f"{self._index.name}*"))

    def _look(self) -> dict[int, tuple[int, int]]:
        found = {}
        for pid in (*self._roots, *(child for root in self._roots for child in _children(root))):
            status = Path(f"/proc/{pid}/status").read_text()
            rss = int(status.partition("VmRSS:")[2].split()[0]) * 1024
            found[pid] = (rss, len(os.listdir(f"/proc/{pid}/fd")))
        return found

    def check(self, seed: int) -> None:
        wait_until(
            lambda: all(n <= self.before.get(p, (0, n))[1] + DESCRIPTORS_MORE for p, (_, n) in self._look().items()),
            f"descriptors are closed again (seed {seed})",
        )
        now = self._look()
        assert set(now) == set(self.before), f"seed {seed}: other processes than before"
        for pid, (rss, _) in now.items():
            grown = rss - self.before[pid][0]
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            is_index = "chiplog_collector.index" in name
            more = self._index_bytes() - self._index_bytes_before + _FLUSH_BYTES if is_index else 0
            assert grown < RSS_GROWTH_BYTES + more, f"seed {seed}: {grown >> 20} MiB more in {name}"


def start_oracle(node: Node, file: Path, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", ORACLE, str(file), "--run-id", "oracle", *options]
    return subprocess.Popen(command, env=dict(os.environ, CHIPLOG_DIR=str(node.root)))


def warm_up(node: Node, file: Path) -> None:
    """Store and query a few events, so that every process has imported what it uses before it is measured."""
    assert start_oracle(node, file, "--events", "200").wait(WAIT_S) == 0
    node.until("SELECT count(*) AS n FROM metrics WHERE key = 'value'", lambda rows: rows[0]["n"] == 200)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def connect(path: str) -> socket.socket:
    deadline = time.monotonic() + WAIT_S
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(WAIT_S)
        try:
            peer.connect(path)
        except BlockingIOError:  # the backlog is full: a client's trouble, for a moment
            peer.close()
            assert time.monotonic() < deadline, f"{path} accepts no connection any more"
            time.sleep(0.001)
        else:
            return peer


def open_and_drop(node: Node, n_each: int) -> int:
    """Open connections to every socket, and close each at once; return how many."""
    names = ("agent.sock", "collector.sock", "query.sock")
    for name in names:
        for _ in range(n_each):
            connect(str(node.place.run / name)).close()
    return n_each * len(names)


def throw_bytes(path: str, chooser: random.Random, count: int) -> int:
    """Send bytes that are not ZMTP, half of a handshake, and frames with false lengths. Opens and drops connections."""
    starts = (b"", GREETING[: int(chooser.random() * 64)], GREETING, GREETING + READY)
    thrown = 0
    for _ in range(count):
        data = pick(chooser, starts)
        act = chooser.random()
        if act < 0.3:
            data += chooser.randbytes(int(chooser.random() * 200))
        elif act < 0.5:
            data += b"\x02" + struct.pack(">Q", pick(chooser, (1 << 32, 1 << 62, (1 << 64) - 1, 9 * MIB))) + b"x" * 100
        elif act < 0.7:
            data = mutate_bytes(chooser, data + b"\0\x04\x91\x91\x91\x91")
        with connect(path) as peer:
            try:
                peer.sendall(data)
            except OSError:
                pass  # it was cut off in the middle: as it should be
        thrown += 1
    return thrown


def throw_messages(path: str, chooser: random.Random, count: int, family: str) -> int:
    """Use ZMTP to send nonsense, partly in a session that was opened properly."""
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.setsockopt(zmq.LINGER, 2_000)
    peer.setsockopt(zmq.SNDTIMEO, int(WAIT_S * 1000))
    peer.connect(f"ipc://{path}")
    session, sender, number = chooser.randbytes(8), chooser.randbytes(16), 0
    if family == "wire":
        peer.send_multipart(messages.hello(session, sender, 0, {"node": "hostile"}))
    for _ in range(count):
        frames = hostile_frames(chooser, family)
        if family == "wire" and chooser.random() < 0.5:
            if "agent.sock" in path:
                record = hostile_record(chooser, Kind.EVENT, number, hostile_event(chooser))
            else:
                record = hostile_record(chooser, Kind.BLOCK, number, hostile_block(chooser))
            frames = [pack([3, session, number, number]), record]
            number += 1
        if frames:
            peer.send_multipart(frames)
        while peer.poll(0):
            peer.recv_multipart()
    if chooser.random() < 0.3:
        peer.send(b"x" * (messages.FRAME_BYTES_MAX + 1))  # above MAXMSGSIZE: the connection ends
    peer.close()
    context.term()
    return count


def greet_at_length(path: str, chooser: random.Random, count: int, before: int) -> int:
    """Open sessions of as many senders, each with as much about itself as a message may hold, and leave them.

    before: how many were opened already; beyond SESSIONS_MAX in all a receiver may refuse.
    """
    wanted = max(0, min(count, SESSIONS_MAX - before))
    names = [name for name, kind in IDENTITY_FIELDS.items() if kind is str and name != "node"]
    about = {"node": "n" * 200, **dict.fromkeys(names, "x" * (messages.HEAD_BYTES_MAX // len(names) - 100))}
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.setsockopt(zmq.SNDTIMEO, int(WAIT_S * 1000))
        peer.connect(f"ipc://{path}")
        answered = 0
        for number in range(count):
            peer.send_multipart(messages.hello(chooser.randbytes(8), chooser.randbytes(16), 0, about))
            while peer.poll(0 if number + 1 < count else WAIT_S * 1000 if answered < wanted else 500):
                answered += messages.parse(peer.recv_multipart()).kind == messages.MessageKind.WELCOME
                if answered == count:
                    return answered
    assert answered >= wanted, f"{answered} of {count} sessions were opened, after {before}"
    return answered


@proves("frame-size-bounded", "frames above MAXMSGSIZE are not taken")
def test_a_frame_longer_than_a_record_ends_its_connection(tmp_path: Path) -> None:
    with zmq.Context() as context:
        router = bind_router(context, [f"ipc://{tmp_path}/s"])
        peer = context.socket(zmq.DEALER)
        peer.setsockopt(zmq.LINGER, 0)
        told = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            peer.connect(f"ipc://{tmp_path}/s")
            peer.send_multipart([b"head", bytes(messages.FRAME_BYTES_MAX)])
            assert router.poll(WAIT_MS), "the longest frame that there is"
            assert len(router.recv_multipart()[2]) == messages.FRAME_BYTES_MAX
            peer.send_multipart([b"head", bytes(messages.FRAME_BYTES_MAX + 1)])
            assert told.poll(WAIT_MS), "it was not cut off"
            assert not router.poll(0)
        finally:
            peer.disable_monitor()
            for socket_ in (told, peer, router):
                socket_.close(0)


@pytest.fixture
def lorises(bare_node: Node) -> Iterator[list[socket.socket]]:
    """Connections that send one byte now and then, and never finish."""
    held: list[socket.socket] = []
    yield held
    for peer in held:
        peer.close()


@proves("malformed-messages-counted", "malformed messages are counted and ignored", value="ZeroDivisionError")
@pytest.mark.promise(8)
@pytest.mark.soak(4)
def test_garbage_at_every_socket_costs_the_ranks_nothing(
    node: Node, rounds: Rounds, lorises: list[socket.socket], tmp_path: Path
) -> None:
    paths = [str(node.place.run / name) for name in ("agent.sock", "collector.sock", "query.sock")]
    file = tmp_path / "oracle"
    warm_up(node, file)
    watched = Watched(node)
    for seed in rounds(1):
        chooser = random.Random(seed)
        rank = start_oracle(node, file, "--events", "1500", "--pause-s", "0.001")
        try:
            for path in paths:
                rounds.count("connections", throw_bytes(path, chooser, 150))
                rounds.count("messages", throw_messages(path, chooser, 400, "questions" if "query" in path else "wire"))
                for _ in range(3):
                    lorises.append(connect(path))
            for peer in lorises:
                try:
                    peer.send(GREETING[:1])
                except OSError:
                    pass  # cut off
            rank.wait(WAIT_S)
        finally:
            rank.kill()
            rank.wait()
        expected = len(oracle.read(file))
        node.until(
            "SELECT count(*) AS n FROM metrics WHERE run_id = 'oracle' AND key = 'value'",
            lambda rows, expected=expected: rows[0]["n"] >= expected,
        )
        rows = node.sql("SELECT step, value FROM metrics WHERE run_id = 'oracle' AND key = 'value'")
        verdict = oracle.compare(file, rows)
        assert verdict.ok and not verdict.extra, f"seed {seed}: {verdict}"
        while lorises:
            lorises.pop().close()
        watched.check(seed)
    quarantined = node.sql("SELECT count(*) AS n FROM events WHERE kind = 'quarantined' AND message <> ''")
    assert quarantined[0]["n"] > 0, "hostile records left no row"


@proves("peer-fields-kept", "of what a peer says of itself an agent keeps what it uses", value="IDENTITY_FIELDS")
@pytest.mark.full
@pytest.mark.soak
def test_connections_opened_and_dropped_leave_nothing(node: Node, rounds: Rounds, tmp_path: Path) -> None:
    warm_up(node, tmp_path / "oracle")
    open_and_drop(node, 1_000)  # libzmq keeps memory for as many
    watched = Watched(node)
    opened = {"agent.sock": 0, "collector.sock": 0}
    for seed in rounds(1):
        chooser = random.Random(seed)
        n_each = 1_000 if not os.environ.get("CHIPLOG_SOAK_MINUTES") else 10_000
        rounds.count("connections", open_and_drop(node, n_each))
        for name in opened:
            opened[name] += greet_at_length(str(node.place.run / name), chooser, SESSIONS, opened[name])
        rounds.count("rounds of sessions")
        assert node.sql("SELECT 1 AS one") == [{"one": 1}]
        watched.check(seed)
