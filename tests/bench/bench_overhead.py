"""The cost of telemetry on every step of a training: two ranks with 10 ms steps, telemetry off and on in turn.

The same two processes run blocks of steps A B A B … A. In both a step computes the same and prints one line. In B it
also times five phases, logs twenty metrics, and its line goes through the captured stdout (in A past it, to the same
file). Each B is compared with the mean of the two A around it, so that a machine that drifts cancels out. The first
steps of a block are excluded: what A inherits from B's queues is not a cost of A. The yardstick is the same statistic
of A against the A around it: the difference that this machine measures when nothing differs. At the end come a few
blocks Y: each call is replaced by an empty Python function, and log() by one that copies a record's bytes into mapped
memory. No call beside a training, with its cold caches, can cost less.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tests.bench.figure import Figure, Node, percentile, tree

RANKS = 2
PAIRS = int(os.environ.get("CHIPLOG_BENCH_PAIRS", "30"))
STEPS = 60  # of a block
SETTLING = 20  # of them: longer than the sender's interval, the agent's flush and the index's
RESAMPLES = 4000
YARDSTICKS = 4  # blocks with empty calls

RANK = """
import json, mmap, os, sys, time
import numpy
os.sched_setaffinity(0, map(int, sys.argv[3:]))
rank, results = int(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w", buffering=1)
plain = os.fdopen(os.dup(1), "w")  # what print() would write to without telemetry
import chiplog
run = chiplog.init(project="bench", run_id="overhead", label=f"rank{rank}", primary=rank == 0)
PHASES = ("data", "forward", "backward", "communication", "optimizer")
clock, thread = time.perf_counter_ns, time.thread_time_ns
weights = numpy.random.default_rng(0).normal(size=(96, 96))
def work(times):
    for _ in range(times):
        weights @ weights
def calibrated():
    least = []
    for _ in range(50):
        begun = clock()
        work(20)
        least.append(clock() - begun)
    return max(1, round(2e6 / (sorted(least)[25] / 20)))  # 2 ms for each of five phases
times = calibrated()
memory, record, at = mmap.mmap(-1, 1 << 20), bytes(700), 0
memory[:] = bytes(1 << 20)
def nothing(name):
    pass
def copied(data, step):
    global at
    memory[at : at + 700] = record
    at = (at + 700) % (1 << 19)
names = [f"train/metric_{i}" for i in range(20)]
step = 0
def steps(count, word):
    global step
    on, empty = word == "B", word == "Y"
    walls, cpus, phases, logs, prints = [], [], [], [], []
    for _ in range(count):
        step += 1
        cpu, begun = thread(), clock()
        in_phases = 0
        for name in PHASES:
            before = clock()
            if on:
                phase = run.phase(name)
                phase.__enter__()
            elif empty:
                nothing(name)
            between = clock()
            work(times)
            after = clock()
            if on:
                phase.__exit__(None, None, None)
            elif empty:
                nothing(name)
            in_phases += clock() - after + between - before
        value = step * 0.001
        data = {name: value for name in names}
        before = clock()
        if on:
            run.log(data, step=step)
        elif empty:
            copied(data, step=step)
        logged = clock()
        print("step", step, "loss", value, file=None if on else plain, flush=True)
        ended = clock()
        walls.append(ended - begun)
        cpus.append(thread() - cpu)
        phases.append(in_phases)
        logs.append(logged - before)
        prints.append(ended - logged)
    return walls, cpus, phases, logs, prints
steps(20, "B")
print("ready", file=results)
for line in sys.stdin:
    word, count = line.split()
    others = time.process_time_ns() - thread()
    measured = steps(int(count), word)
    others = time.process_time_ns() - thread() - others
    print(json.dumps([*measured, others]), file=results)
assert not run._diagnostics.counts, run._diagnostics.counts
run.finish()
"""
WALLS, CPUS, PHASES, LOGS, PRINTS, OTHERS = range(6)


class Rank:
    """One process that runs the requested blocks, on the given cores."""

    def __init__(self, rank: int, root: Path, environ: dict[str, str], cores: set[int]) -> None:
        reader, writer = os.pipe()
        with open(root / f"rank{rank}.out", "wb") as out:
            command = [sys.executable, "-P", "-c", RANK, str(rank), str(writer), *map(str, cores)]
            environ = environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, env=environ, stdin=pipe, stdout=out, pass_fds=[writer], text=True)
        os.close(writer)
        self._results = os.fdopen(reader)

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word} {STEPS}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        line = self._results.readline()
        assert line, "a rank ended early"
        return line

    def end(self) -> None:
        self.process.communicate()
        self._results.close()
        assert self.process.returncode == 0


@dataclass
class Blocks:
    """What each rank measured in each block, A B A B … A, and the CPU of all else in all B, µs per rank's step."""

    ranks: list[list[list[Any]]]
    beside_us: dict[str, float]  # agent, collector, and the helpers that drain the ranks' consoles


def blocks(rank_cores: list[set[int]], daemon_cores: set[int]) -> Blocks:
    plan = "AB" * PAIRS + "A" + "Y" * YARDSTICKS
    mine = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as root:
        os.sched_setaffinity(0, daemon_cores)  # inherited
        try:
            node = Node(Path(root))
        finally:
            os.sched_setaffinity(0, mine)
        try:
            ranks = [Rank(number, Path(root), node.environ, cores) for number, cores in enumerate(rank_cores)]
            for rank in ranks:
                rank.answer()
            answers: list[list[list[Any]]] = [[] for _ in ranks]
            beside = {name: tree(process.pid) for name, process in node.processes.items()}
            beside["console helpers"] = helpers_of(root)
            spent = dict.fromkeys(beside, 0)
            for word in plan:
                before = {name: run_ns(pids) for name, pids in beside.items()}
                for rank in ranks:
                    rank.tell(word)
                for rank, measured in zip(ranks, answers, strict=True):
                    measured.append(json.loads(rank.answer()))
                if word == "B":
                    for name, pids in beside.items():
                        spent[name] += run_ns(pids) - before[name]
            for rank in ranks:
                rank.end()
            check_stored(node)
        finally:
            node.stop()
    steps = RANKS * PAIRS * STEPS
    return Blocks(answers, {name: ns / steps / 1e3 for name, ns in spent.items()})


def helpers_of(root: str) -> list[int]:
    """Return the processes that drain the consoles of ranks in a directory. They are not children of this process."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if b"helper_main.py" in (process / "cmdline").read_bytes() and f"CHIPLOG_DIR={root}".encode() in (
                process / "environ"
            ).read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue  # no process, or one that ended
    return found


def run_ns(pids: list[int]) -> int:
    """Return how long these processes ran on a core: finer than the ticks of /proc/PID/stat."""
    found = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += int((thread / "schedstat").read_text().split()[0])
    return found


def check_stored(node: Node) -> None:
    """Telemetry that was not stored was no telemetry: wait for every row of it."""
    import chiplog

    steps = RANKS * (20 + PAIRS * STEPS)
    wanted = {"metrics": 20 * steps, "phases": 5 * steps, "console": steps}
    deadline = time.monotonic() + 30
    stored: dict[str, int] = {}
    while stored != wanted:
        assert time.monotonic() < deadline, (stored, wanted)
        time.sleep(0.2)
        with chiplog.connect(dir=node.place.root) as client:
            stored = {
                view: client.sql(f"SELECT count(*) AS n FROM {view} WHERE {which}").rows()[0]["n"]
                for view, which in (("metrics", "true"), ("phases", "phase <> 'gc'"), ("console", "true"))
            }


def differences(means: list[float], first: int, apart: int) -> list[float]:
    """Return each block from `first` on, in % of the mean of the two blocks that lie `apart` blocks around it."""
    found = []
    for at in range(first, len(means) - apart, 2):
        if at >= apart:
            base = (means[at - apart] + means[at + apart]) / 2
            found.append((means[at] / base - 1) * 100)
    return found


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % confidence interval, by resampling."""
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.median(values), medians[RESAMPLES // 40], medians[-RESAMPLES // 40]


def compared(ranks: list[list[list[Any]]], which: int) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return (B against A, A against A) of a kind of time, as intervals over the blocks of all ranks."""
    means = [[statistics.fmean(block[which][SETTLING:]) for block in rank[:-YARDSTICKS]] for rank in ranks]
    with_telemetry = list(chain.from_iterable(differences(rank, 1, 1) for rank in means))
    nothing_differs = list(chain.from_iterable(differences(rank, 2, 2) for rank in means))
    return interval(with_telemetry), interval(nothing_differs)


def shown(found: tuple[float, float, float]) -> str:
    return f"{found[0]:+.2f} %, 95 % CI {found[1]:+.2f} to {found[2]:+.2f}"


def step_time(name: str, measured: Blocks, ranks: list[list[list[Any]]]) -> list[Figure]:
    figures = []
    for what, which in (("step time", WALLS), ("CPU time of the training's thread", CPUS)):
        on, nothing = compared(ranks, which)
        figure = Figure(f"{name}: {what}, on against off", on[0], "%", at_most=0.5)
        figure.yardstick = f"{shown(on)}; off against off {shown(nothing)}"
        figures.append(figure)
    beside = ", ".join(f"{name} {us:.0f}" for name, us in measured.beside_us.items())
    figures[0].yardstick += f"; CPU per rank's step, µs: {beside}"
    return figures


def measure() -> list[Figure]:
    cores = sorted(os.sched_getaffinity(0))
    crowded = blocks([set(cores)] * RANKS, set(cores))
    off, on = ([block for rank in crowded.ranks for block in rank[first:-YARDSTICKS:2]] for first in (0, 1))
    least = [block for rank in crowded.ranks for block in rank[-YARDSTICKS:]]

    def each(which: int, of: list[list[Any]]) -> list[float]:
        return [ns / 1e3 for block in of for ns in block[which]]

    took = [sum(parts) for parts in zip(each(PHASES, on), each(LOGS, on), each(PRINTS, on), strict=True)]
    step_ms = statistics.median(each(WALLS, off)) / 1e3
    others = [sum(block[OTHERS] for block in of) / sum(len(block[WALLS]) for block in of) / 1e3 for of in (off, on)]
    parts = ", ".join(
        f"{what} {percentile(each(which, on), 0.5):.0f}"
        for what, which in (("5 phases", PHASES), ("log()", LOGS), ("print", PRINTS))
    )
    past = percentile(each(PRINTS, off), 0.5)
    name = f"20 metrics, 5 phases, 1 line per {step_ms:.0f} ms step"
    figures = [
        Figure(f"{name}: in these calls, p50", percentile(took, 0.5), "µs", at_most=60),
        Figure(f"{name}: in these calls, p99", percentile(took, 0.99), "µs"),
        Figure(f"{name}: CPU of the rank's other threads", others[1], "µs", yardstick=f"while off {others[0]:.0f}"),
    ]
    calls, copy = (percentile(each(which, least), 0.5) for which in (PHASES, LOGS))
    figures[
        0
    ].yardstick = (
        f"{parts}; print past the capture {past:.0f}, ten empty calls {calls:.1f}, a copy of 700 bytes {copy:.1f}"
    )
    if len(cores) > 1:
        # As on a node with a core to spare: rank 0 has its own, rank 1 and the daemons are on another.
        spare = blocks([{cores[0]}] + [{cores[1]}] * (RANKS - 1), {cores[1]})
        figures += step_time("rank with a core of its own", spare, spare.ranks[:1])
    return figures + step_time(f"{RANKS} busy ranks and the daemons on {len(cores)} cores", crowded, crowded.ranks)
