"""Cost and memory of telemetry in case of faults: log() with a stopped agent, on a full disk, with a stopped and with a
slow collector, beside the same loops without a fault; memory of a rank over ten million calls, and of an agent whose
eight ranks log as fast as they can.
"""

import contextlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.figure import BARE, Figure, Node, fresh_node, memory_bytes, python, start_python, tree

RUNS = 3
RANKS = 8
BUSY_S = 20
SLOW_COLLECTOR = """
import time
from chiplog_collector.receiver.commit import CommitBuilder
add = CommitBuilder.add_slice
def slowly(*arguments):
    accepted = add(*arguments)
    time.sleep(len(accepted))
    return accepted
CommitBuilder.add_slice = slowly
"""
SLOW = "collector takes one record a second"
TROUBLES = ("all is well", "agent stopped", "disk full", "collector stopped", SLOW)
FULL_DISK_BYTES = 2 << 20  # what the journals have: enough to begin, not for a second segment

# Two loops: as fast as possible, and with the pauses of a small training, where caches are cold. Beside each, the same
# by BARE in memory that is there.
LOOPS = (
    BARE
    + """
import sys, chiplog
memory.madvise(23)
data = {f"train/metric_{i}": 0.1 * i for i in range(10)}
clock = time.perf_counter_ns
def loop(call, calls, pause_s):
    took = []
    for step in range(calls):
        begun = clock()
        call(step)
        took.append(clock() - begun)
        if pause_s:
            time.sleep(pause_s)
    took.sort()
    return [took[calls // 2] / 1e3, took[calls * 999 // 1000] / 1e3, took[-1] / 1e3]
run = chiplog.init(project="bench", capture_console=False)
def ours(step):
    run.log(data, step=step)
loop(ours, 1000, 0.001)
print("begun", flush=True)
sys.stdin.readline()
results = {"tight": loop(ours, 100_000, 0), "paced": loop(ours, 6_000, 0.0005)}
results |= {"bare tight": loop(bare, 100_000, 0), "bare paced": loop(bare, 6_000, 0.0005)}
results["dropped"] = run._journal.dropped
begun = time.monotonic()
run.finish()
results["finish"] = time.monotonic() - begun
print(results)
"""
)

TEN_MILLION = """
import sys, time, chiplog
data = {"loss": 1.0, "lr": 0.1}
def resident():
    with open("/proc/self/status") as status:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith("Rss") or "VmRSS" in line}
    return [kib["VmRSS"] / 1024, kib["RssAnon"] / 1024]
run = chiplog.init(project="bench", capture_console=False)
for step in range(1000):
    run.log(data, step=step)
before = resident()
curve = []
begun = time.monotonic()
for million in range(10):
    for step in range(1_000_000):
        run.log(data, step=step)
    curve.append([now - then for now, then in zip(resident(), before)])
print([curve, time.monotonic() - begun, run._journal.dropped])
"""

FULL_SPEED = """
import sys, time, chiplog
run = chiplog.init(project="bench", run_id="ranks", label=f"rank{sys.argv[1]}", primary=False, capture_console=False)
data = {f"train/metric_{i}": 0.1 * i for i in range(10)}
end, step = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end:
    for step in range(step, step + 1000):
        run.log(data, step=step)
run.finish()
"""


@contextlib.contextmanager
def full_disk(place: Path) -> Iterator[str]:
    """Put the journals on a small separate disk; without root, limit the size of a file."""
    place.mkdir(parents=True, mode=0o700)
    options = f"size={FULL_DISK_BYTES},mode=0700"
    mounted = (
        shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], stderr=subprocess.DEVNULL
        ).returncode
    )
    if not mounted:
        yield "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def loops(trouble: str) -> dict[str, Any]:
    """Run the loops once, in trouble or without."""
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        first = ""
        if trouble == "disk full":
            first = stack.enter_context(full_disk(Path(root) / "journals"))
        slow = SLOW_COLLECTOR if trouble == SLOW else ""
        node = Node(Path(root), "--no-stats", collector_first=slow)
        stack.callback(node.stop)
        rank = subprocess.Popen(
            [sys.executable, "-P", "-c", first + LOOPS],
            env=node.environ | {"CHIPLOG_AGENT": node.place.agent_address},  # named: none is started beside it
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        stack.callback(rank.wait)
        stack.callback(rank.kill)
        assert rank.stdin is not None and rank.stdout is not None
        rank.stdout.readline()
        victim = {"agent stopped": "agent", "collector stopped": "collector"}.get(trouble)
        if victim:
            node.processes[victim].send_signal(signal.SIGSTOP)
        if trouble == "disk full" and not first:
            with contextlib.suppress(OSError), open(Path(root) / "journals" / ".filler", "wb", buffering=0) as filler:
                while filler.write(bytes(4096)):
                    pass
        rank.stdin.write("\n")
        rank.stdin.flush()
        result: dict[str, Any] = eval(rank.stdout.readline())
        if victim:
            node.processes[victim].send_signal(signal.SIGCONT)
        return result


def measure_log() -> list[Figure]:
    figures = []
    for trouble in TROUBLES:
        runs = [loops(trouble) for _ in range(RUNS)]
        for pace in ("tight", "paced"):
            p50, p999, worst = (statistics.median(run[pace][i] for run in runs) for i in range(3))
            bare = [statistics.median(run[f"bare {pace}"][i] for run in runs) for i in range(3)]
            dropped = max(run["dropped"] for run in runs)
            beside = (
                f"p50 {p50:.1f}, worst {worst:,.0f}; msgpack + mapped memory: p50 {bare[0]:.1f}, p99.9 {bare[1]:.1f}, "
                f"worst {bare[2]:,.0f}; {dropped:,} dropped"
            )
            loop = "no pause" if pace == "tight" else "0.5 ms between calls"
            figures.append(Figure(f"log() p99.9, {trouble}, {loop}", p999, "µs", at_most=50, yardstick=beside))
        finish_s = max(run["finish"] for run in runs)
        figures.append(Figure(f"finish() then, worst, {trouble}", finish_s, "s", at_most=1.1))
    return figures


def measure_rank_memory() -> Figure:
    with fresh_node("--no-stats", collector=False) as node:
        curve, took_s, dropped = python(TEN_MILLION, node.environ)
    beside = (
        f"by million: {', '.join(f'{rss:.0f}' for rss, _ in curve)}; of it anonymous at the end {curve[-1][1]:.0f}; "
        f"{took_s:.0f} s, {dropped:,} dropped"
    )
    return Figure(
        "memory of the SDK, ten million calls", max(rss for rss, _ in curve), "MiB", at_most=64, yardstick=beside
    )


def measure_agent_memory() -> list[Figure]:
    peaks: dict[str, tuple[int, int]] = {"agent": (0, 0), "sampler": (0, 0)}
    with fresh_node() as node:
        ranks = [start_python(FULL_SPEED, node.environ, rank, BUSY_S) for rank in range(RANKS)]
        try:
            while any(rank.poll() is None for rank in ranks):
                time.sleep(0.25)
                pids = tree(node.processes["agent"].pid)
                for name, pid in zip(("agent", "sampler"), pids, strict=False):
                    with contextlib.suppress(OSError):
                        peaks[name] = max(peaks[name], memory_bytes(pid))
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return [
        Figure(
            f"memory of the {name}, {RANKS} ranks at full speed, peak",
            rss / 2**20,
            "MiB",
            at_most=150,
            yardstick=f"proportional {pss / 2**20:.0f}",
        )
        for name, (rss, pss) in peaks.items()
    ]


def measure() -> list[Figure]:
    return [*measure_log(), measure_rank_memory(), *measure_agent_memory()]
