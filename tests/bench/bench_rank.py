"""What a rank pays: log(), import, init(), finish()."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figure import BARE, Figure, Node, fresh_node, python

DOWN_WAIT_S = 60.0  # a collector applies its log before it ends

TIGHT_LOOP = (
    BARE
    + """
import chiplog
data = {f"train/metric_{i}": 0.1 * i for i in range(10)}
twenty = {f"train/metric_{i}": 0.1 * i for i in range(20)}
calls = 200_000
clock = time.perf_counter_ns
def loop(call):
    took = []
    note = took.append
    cpu = time.process_time_ns()
    for step in range(calls):
        begun = clock()
        call(step)
        note(clock() - begun)
    cpu = time.process_time_ns() - cpu
    took.sort()
    return [took[calls // 2] / 1e3, took[calls * 99 // 100] / 1e3, took[calls * 999 // 1000] / 1e3, cpu / calls / 1e3]
run = chiplog.init(project="bench", capture_console=False)
time.sleep(1.0)
def ours(step):
    run.log(data, step=step)
loop(ours)
results = {"bare": loop(bare), "ours": loop(ours)}
results["twenty"] = loop(lambda step: run.log(twenty, step=step))
results["empty"] = loop(lambda step: None)
assert not run._diagnostics.counts, run._diagnostics.counts
run.finish()
print(results)
"""
)

WHOLE_STEP = """
import time, chiplog
run = chiplog.init(project="bench")
data = {f"train/metric_{i}": 0.1 * i for i in range(20)}
phases = ["data", "forward", "backward", "optimizer", "log"]
took, printed = [], []
clock = time.perf_counter_ns
for step in range(20_000):
    begun = clock()
    for name in phases:
        with run.phase(name):
            pass
    run.log(data, step=step)
    before = clock()
    print("step", step, "loss 0.25")
    after = clock()
    run.step()
    took.append(clock() - begun)
    printed.append(after - before)
    if step % 200 == 0:
        time.sleep(0.01)
assert not run._diagnostics.counts, run._diagnostics.counts
run.finish()
took.sort()
printed.sort()
print({name: [times[10_000] / 1e3, times[19_800] / 1e3] for name, times in (("step", took), ("print", printed))})
"""

START = """
import time
begun = time.perf_counter()
import chiplog
imported = time.perf_counter()
run = chiplog.init(project="bench")
opened = time.perf_counter()
for step in range(100):
    run.log({"loss": 1.0}, step=step)
    time.sleep(0.005)
before = time.perf_counter()
run.finish()
print([imported - begun, opened - imported, time.perf_counter() - before])
"""


def both_paths(code: str) -> tuple[list[dict[str, list[float]]], list[dict[str, list[float]]]]:
    """Run a program with the C part of the SDK and without, in turns."""
    in_c, in_python = [], []
    with fresh_node("--no-stats") as node:
        for _ in range(3):
            in_c.append(python(code, node.environ))
            in_python.append(python(code, node.environ | {"CHIPLOG_NATIVE": "0"}))
    return in_c, in_python


def medians(runs: list[dict[str, list[float]]], name: str) -> list[float]:
    return [statistics.median(column) for column in zip(*(run[name] for run in runs), strict=True)]


def measure_log() -> list[Figure]:
    figures = []
    in_c, in_python = both_paths(TIGHT_LOOP)
    for path, runs in (("", in_c), (" in Python", in_python)):
        ours, more, bare, empty = (medians(runs, name) for name in ("ours", "twenty", "bare", "empty"))
        beside = f"msgpack + mapped memory, same loop: p50 {bare[0]:.2f}, p99 {bare[1]:.2f}; empty call {empty[0]:.2f}"
        is_c = not path
        figures += [
            Figure(f"log() of ten floats{path}, p50", ours[0], "µs", at_most=0.6 if is_c else 3, yardstick=beside),
            Figure(f"log() of ten floats{path}, p99", ours[1], "µs", at_most=2 if is_c else 25, yardstick=beside),
            Figure(f"log() of ten floats{path}, p99.9", ours[2], "µs", yardstick=f"same: p99.9 {bare[2]:.1f}"),
            Figure(
                f"CPU of the process per call, twenty floats{path}",
                more[3],
                "µs",
                at_most=1.5 if is_c else 6,
                yardstick=f"an empty call in this loop {empty[3]:.2f}",
            ),
        ]
    return figures


def measure_step() -> list[Figure]:
    figures = []
    in_c, in_python = both_paths(WHOLE_STEP)
    what = "20 numbers, 5 phases, a step, a printed line"
    for path, runs in (("", in_c), (" in Python", in_python)):
        step, line = medians(runs, "step"), medians(runs, "print")
        beside = f"{what}; of it print() p50 {line[0]:.1f}, p99 {line[1]:.1f}"
        figures += [
            Figure(f"all of a step{path}, p50", step[0], "µs", at_most=40 if not path else 60, yardstick=beside),
            Figure(f"all of a step{path}, p99", step[1], "µs", yardstick=beside),
        ]
    return figures


def measure_start() -> list[Figure]:
    with fresh_node("--no-stats") as node:
        with_agent = [python(START, node.environ) for _ in range(7)]
    first, broken = [], []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as root:
            node = Node(Path(root), agent=False, collector=False)
            first.append(python(START, node.environ))
            down(node)
        broken.append(
            python(START, node.environ | {"CHIPLOG_AGENT": "ipc:///tmp/chiplog-no-such.sock", "CHIPLOG_DIR": root})
        )
    bare = []
    for _ in range(7):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", "import zmq, msgpack"], check=True)
        bare.append(time.perf_counter() - begun)
    ms = [statistics.median(run[i] for run in with_agent) * 1e3 for i in range(3)]
    first_init = statistics.median(run[1] for run in first) * 1e3
    worst = max(run[2] for run in broken)
    python_s = statistics.median(bare) * 1e3
    return [
        Figure(
            "import chiplog", ms[0], "ms", at_most=100, yardstick=f"python -c 'import zmq, msgpack' {python_s:.0f} ms"
        ),
        Figure("init()", ms[1], "ms", at_most=30, yardstick="an agent runs"),
        Figure("first init() of a host", first_init, "ms", at_most=30, yardstick="starts agent and collector"),
        Figure("finish() with an agent", ms[2], "ms", at_most=150, yardstick="100 events before it"),
        Figure("finish() without an agent, worst", worst * 1e3, "ms", at_most=1000, yardstick="agent address dead"),
    ]


def down(node: Node) -> None:
    """End the daemons of a directory, also a collector that an agent has just started."""
    entry = f"CHIPLOG_DIR={node.place.root}".encode()
    deadline = time.monotonic() + DOWN_WAIT_S
    while pids := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if entry in environ_of(pid)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} of {node.place.root} did not end")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)


def environ_of(pid: int) -> list[bytes]:
    """Return the variables of a process; none if it has ended or is not for this user."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def measure() -> list[Figure]:
    return measure_log() + measure_step() + measure_start()
