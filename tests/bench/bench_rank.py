"""What a rank pays: log(), import, init(), finish()."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figure import Figure, Node, python

TIGHT_LOOP = """
import mmap, msgpack, time, chiplog, threading, zlib
data = {f"train/metric_{i}": 0.1 * i for i in range(10)}
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
memory = mmap.mmap(-1, 256 << 20)
packer = msgpack.Packer()
at = 0
lock = threading.Lock()
def bare(step):
    global at
    with lock:
        record = packer.pack([step, time.time_ns(), data])
        memory[at:at + len(record)] = record
        at += len(record)
run = chiplog.init(project="bench", capture_console=False)
time.sleep(1.0)
def ours(step):
    run.log(data, step=step)
loop(ours)
results = {"bare": loop(bare), "ours": loop(ours)}
results["empty"] = loop(lambda step: None)
assert not run._complaints.counts, run._complaints.counts
run.finish()
print(results)
"""

WHOLE_STEP = """
import time, chiplog
run = chiplog.init(project="bench")
data = {f"train/metric_{i}": 0.1 * i for i in range(20)}
phases = ["data", "forward", "backward", "optimizer", "log"]
took = []
for step in range(20_000):
    begun = time.perf_counter_ns()
    for name in phases:
        with run.phase(name):
            pass
    run.log(data, step=step)
    print("step", step, "loss 0.25")
    run.step()
    took.append(time.perf_counter_ns() - begun)
    if step % 200 == 0:
        time.sleep(0.01)
assert not run._complaints.counts, run._complaints.counts
run.finish()
took.sort()
print([took[10_000] / 1e3, took[19_800] / 1e3])
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


def measure_log() -> list[Figure]:
    with tempfile.TemporaryDirectory() as root:
        node = Node(Path(root), "--no-stats")
        try:
            runs = [python(TIGHT_LOOP, node.environ) for _ in range(3)]
        finally:
            node.stop()
    ours = [statistics.median(run["ours"][i] for run in runs) for i in range(4)]
    bare = [statistics.median(run["bare"][i] for run in runs) for i in range(4)]
    empty = statistics.median(run["empty"][3] for run in runs)
    beside = f"msgpack + mapped memory, same loop: p50 {bare[0]:.2f}, p99 {bare[1]:.2f}"
    return [
        Figure("log() of ten floats, p50", ours[0], "µs", at_most=3, yardstick=beside),
        Figure("log() of ten floats, p99", ours[1], "µs", at_most=25, yardstick=beside),
        Figure("log() of ten floats, p99.9", ours[2], "µs", yardstick=f"same: p99.9 {bare[2]:.1f}"),
        Figure(
            "CPU of the process per call", ours[3], "µs", at_most=5, yardstick=f"an empty call in this loop {empty:.2f}"
        ),
    ]


def measure_step() -> list[Figure]:
    with tempfile.TemporaryDirectory() as root:
        node = Node(Path(root), "--no-stats")
        try:
            runs = [python(WHOLE_STEP, node.environ) for _ in range(3)]
        finally:
            node.stop()
    p50, p99 = (statistics.median(run[i] for run in runs) for i in range(2))
    what = "20 numbers, 5 phases, a step, a printed line"
    return [
        Figure("all of a step, p50", p50, "µs", at_most=60, yardstick=what),
        Figure("all of a step, p99", p99, "µs"),
    ]


def measure_start() -> list[Figure]:
    with tempfile.TemporaryDirectory() as root:
        node = Node(Path(root), "--no-stats")
        try:
            with_agent = [python(START, node.environ) for _ in range(7)]
        finally:
            node.stop()
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
    import os
    import signal

    from chiplog_schemas.process.file_lock import lock_holder_pid

    time.sleep(1.0)
    for directory in (node.place.agent, node.place.collector):
        pid = lock_holder_pid(directory / "lock")
        if pid > 0:
            os.kill(pid, signal.SIGTERM)
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.02)


def measure() -> list[Figure]:
    return measure_log() + measure_step() + measure_start()
