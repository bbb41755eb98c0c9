"""Eight ranks at twenty steps a second, twenty metrics each, for thirty seconds: the time in log(), and total cost.

CPU counts everything from the interpreters' start to their end: ranks with import and init, agent, sampler, receiver
and index. CPU in the loop counts the same processes between their start and their end: mostly wake-ups. Memory is the
maximum of the sum of all proportional set sizes; resident size, which counts shared pages once per process, is shown
too.
"""

import ast
import resource
import subprocess
import time
from pathlib import Path

from tests.bench.figure import BARE, Figure, Node, cpu_s, fresh_node, memory_bytes, percentile, start_python, tree

RANKS = 8
SECONDS = 30
STEPS_PER_S = 20
STARTED_S = 5.0  # after this all ranks are in their loop

RANK = """
import sys, time, chiplog
rank = int(sys.argv[1])
run = chiplog.init(project="bench", run_id="ranks", label=f"rank{rank}", primary=rank == 0)
data = {f"train/metric_{i}": 0.1 * i for i in range(20)}
took = []
begun = time.monotonic()
for step in range(600):
    time.sleep(max(0.0, begun + step / 20 - time.monotonic()))
    before = time.perf_counter_ns()
    run.log(data, step=step)
    took.append(time.perf_counter_ns() - before)
run.finish()
print(took)
"""
assert f"range({SECONDS * STEPS_PER_S})" in RANK and f"step / {STEPS_PER_S} " in RANK

# A loop at the ranks' pace: what it needs, and the call that is timed.
PACED = """
import sys, time
data = {{f"train/metric_{{i}}": 0.1 * i for i in range(20)}}
{needs}
took = []
begun = time.monotonic()
for step in range(200):
    time.sleep(max(0.0, begun + step / 20 - time.monotonic()))
    before = time.perf_counter_ns()
    {call}
    took.append(time.perf_counter_ns() - before)
print(took)
"""

# BARE, with caches as cold as those of the ranks, in memory that is there.
TOUCHED = f"""
{BARE}
for page in range(0, 1 << 20, 4096):
    memory[page] = 1
"""

JSONL = """
import json
def write(step):
    file.write(json.dumps({"step": step, **data}) + "\\n")
    file.flush()
file = open(sys.argv[1], "a")
"""
YARDSTICKS = {
    # What nothing in Python goes below: the cold call itself.
    "an empty function": PACED.format(needs="def empty(data, step): pass", call="empty(data, step=step)"),
    "lock + msgpack + mapped memory": PACED.format(needs=TOUCHED, call="bare(step)"),
    "JSONL flushed per line": PACED.format(needs=JSONL, call="write(step)"),
}


def measure() -> list[Figure]:
    spent_before = children_cpu_s()
    with fresh_node() as node:
        ranks = [start_python(RANK, node.environ, rank) for rank in range(RANKS)]
        peak_rss = peak_pss = 0
        time.sleep(STARTED_S)
        loop_begun, cpu_before = time.monotonic(), loop_cpu(ranks, node)
        for _ in range(SECONDS // 5 - 1):
            time.sleep(4.5)
            pids = [pid for process in (*ranks, *node.processes.values()) for pid in tree(process.pid)]
            sizes = [memory_bytes(pid) for pid in pids if Path(f"/proc/{pid}").exists()]
            peak_rss = max(peak_rss, sum(rss for rss, _ in sizes))
            peak_pss = max(peak_pss, sum(pss for _, pss in sizes))
        share = SECONDS / (time.monotonic() - loop_begun)
        in_loop = {name: (after - cpu_before[name]) * share for name, after in loop_cpu(ranks, node).items()}
        outputs = [process.communicate()[0] for process in ranks]
        node.stop()
        spent = children_cpu_s() - spent_before
        besides = {what: beside(code, node.place.root, node.environ) for what, code in YARDSTICKS.items()}
    took = times_of(outputs)
    line = ", ".join(
        f"{what} p50 {percentile(times, 0.5):.0f} p99 {percentile(times, 0.99):.0f}" for what, times in besides.items()
    )
    line = f"8 processes, same pace: {line}"
    name = f"{RANKS} ranks × {STEPS_PER_S} steps/s × 20 metrics × {SECONDS} s"
    return [
        Figure(f"{name}: log() p50", percentile(took, 0.5), "µs", at_most=10, yardstick=line),
        Figure(f"{name}: log() p99", percentile(took, 0.99), "µs", at_most=25, yardstick=line),
        Figure(
            f"{name}: CPU of everything", spent, "s", at_most=5, yardstick="Trackio 8.0, W&B 13.6 (measured earlier)"
        ),
        Figure(
            f"{name}: CPU in the loop",
            sum(in_loop.values()),
            "s",
            at_most=2.5,
            yardstick=", ".join(f"{part} {used:.2f}" for part, used in in_loop.items()),
        ),
        Figure(
            f"{name}: memory",
            peak_pss / 2**20,
            "MiB",
            at_most=450,
            yardstick=f"summed resident size {peak_rss / 2**20:.0f}",
        ),
    ]


def loop_cpu(ranks: list[subprocess.Popen[str]], node: Node) -> dict[str, float]:
    """CPU seconds so far by part: the ranks, the agent and its sampler, the receiver, the index."""
    used = {"ranks": sum(cpu_s(pid) for process in ranks for pid in tree(process.pid))}
    for name, child in (("agent", "sampler"), ("collector", "index")):
        pids = tree(node.processes[name].pid)
        used[name] = cpu_s(pids[0])
        used[child] = sum(cpu_s(pid) for pid in pids[1:])
    return used


def beside(code: str, root: Path, environ: dict[str, str]) -> list[float]:
    """Run a yardstick in as many processes as there were ranks; microseconds."""
    processes = [start_python(code, environ, f"{root}/beside-{rank}.jsonl") for rank in range(RANKS)]
    return times_of([process.communicate()[0] for process in processes])


def times_of(outputs: list[str]) -> list[float]:
    return [ns / 1e3 for output in outputs for ns in ast.literal_eval(output.strip().splitlines()[-1])]


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
