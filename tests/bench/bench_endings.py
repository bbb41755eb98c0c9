"""Time from the end of a process until SQL at the collector shows it: crashes of ranks, and a node that falls silent.

The yardstick is the path itself: the time from `log()` of a value until SQL returns it, in the same run.
"""

import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chiplog
from chiplog_client.client import Client
from tests.bench.figure import Figure, Node

ROUNDS = int(os.environ.get("CHIPLOG_BENCH_ENDINGS", "10"))
WAIT_S = 60

RANK = """
import ctypes, os, sys, time
import chiplog
run = chiplog.init(project="bench", run_id=sys.argv[1], label="rank0")
run.log({"loss": 1.0})
print("ready", flush=True)
sys.stdin.readline()
exec(sys.argv[2])
"""
ENDINGS = {
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "a segmentation fault": "ctypes.string_at(0)",
    "os._exit(3)": "os._exit(3)",
    "an uncaught exception": "raise ValueError('boom')",
}


@contextmanager
def rank(node: Node, run_id: str, ending: str = "") -> Iterator["subprocess.Popen[str]"]:
    """A rank that has logged, and then waits for a line on its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", RANK, run_id, ending],
        env=node.environ | {"CHIPLOG_AGENT": node.place.agent_address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def until(client: Client, query: str, *params: str) -> float:
    """Return when a query had an answer first."""
    deadline = time.monotonic() + WAIT_S
    while not client.sql(query, params).rows():
        assert time.monotonic() < deadline, (query, params)
        time.sleep(0.002)
    return time.monotonic()


def seen_after(node: Node, client: Client, run_id: str, ending: str) -> tuple[float, float]:
    """Return the seconds from the end of a process until its label's row shows it, and those of one `log()`."""
    begun = time.monotonic()
    with rank(node, run_id, ending) as process:
        begun = time.monotonic()
        logged = until(client, "SELECT 1 FROM metrics WHERE run_id = ?", run_id) - begun
        end = os.pidfd_open(process.pid)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        poll = select.poll()
        poll.register(end, select.POLLIN)
        poll.poll(WAIT_S * 1000)
        ended = time.monotonic()
        os.close(end)
        query = "SELECT 1 FROM labels WHERE run_id = ? AND state IN ('failed', 'crashed')"
        return until(client, query, run_id) - ended, logged


def crashes(root: Path) -> list[Figure]:
    with Node(root) as node:
        figures = []
        with chiplog.connect(dir=root) as client:
            for name, ending in ENDINGS.items():
                times = [seen_after(node, client, f"{name}-{i}".replace(" ", "-"), ending) for i in range(ROUNDS)]
                seen, logged = zip(*times, strict=True)
                figure = Figure(f"the collector sees {name}, slowest of {ROUNDS}", max(seen), "s", at_most=2)
                way = f"a first log() is in SQL after {statistics.median(logged):.2f}"
                figure.yardstick = f"median {statistics.median(seen):.2f}; {way}"
                figures.append(figure)
    return figures


def silence(root: Path) -> Figure:
    """A node whose processes all stop at once, as in a power failure."""
    centre = Node(root / "centre", agent=False)
    node = Node(root / "node", collector=False, agent=False)
    agent = node.start("agent", "chiplog_agent", "--collector", centre.place.collector_address)
    try:
        node.wait_for(node.place.run / "agent.sock")
        with chiplog.connect(dir=root / "centre") as client, rank(node, "lost") as process:
            until(client, "SELECT 1 FROM metrics WHERE run_id = 'lost'")
            for pid in (agent.pid, process.pid):
                os.kill(pid, signal.SIGSTOP)
            begun = time.monotonic()
            seen = until(client, "SELECT 1 FROM labels WHERE run_id = 'lost' AND state = 'crashed'") - begun
            for pid in (agent.pid, process.pid):
                os.kill(pid, signal.SIGCONT)
    finally:
        node.stop()
        centre.stop()
    return Figure("the collector sees that a node is lost", seen, "s", at_most=15, yardstick="one node, stopped")


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as root:
        return [*crashes(Path(root) / "crashes"), silence(Path(root))]
