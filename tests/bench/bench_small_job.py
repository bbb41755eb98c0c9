"""A job of ten steps at 5 Hz in an empty directory: CPU time and memory of the rank and of what it starts.

Memory is the highest sum of the proportional set sizes (PSS), read every 50 ms. A process has fewer MiB of it
where others map the same libraries. Bytecode is cached before, as in an installation.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import chiplog
from tests.bench.figure import Figure, cpu_s, memory_bytes, tree

STEPS = 10
READ_S = 0.05
AFTER_S = 1.0  # the journal is delivered, and a daemon would have started what the end of a rank starts
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: the daemons, which leave their parent, become children of this process

JOB = f"""
import time, chiplog
chiplog.init(project="bench")
for step in range({STEPS}):
    chiplog.log({{"loss": 1.0 / (step + 1), "rate": 0.1}}, step=step)
    time.sleep(0.2)
chiplog.finish()
"""
BARE = f"""
import json, os, time
with open(os.path.join(os.environ["CHIPLOG_DIR"], "metrics.jsonl"), "w") as file:
    for step in range({STEPS}):
        file.write(json.dumps({{"step": step, "ts": time.time(), "loss": 1.0 / (step + 1), "rate": 0.1}}) + "\\n")
        file.flush()
        time.sleep(0.2)
"""
IMPORTS = "import duckdb, zmq, msgpack, numpy"
# The argument of a process that names its part; the first one that matches.
PARTS = {
    "chiplog_collector.index": "index",
    "chiplog_collector": "receiver",
    "chiplog_agent.stats": "sampler",
    "chiplog_agent": "agent",
    "helper_main.py": "console helper",
}


@dataclass
class Cost:
    """CPU seconds and the highest PSS in bytes, of each part and in all."""

    cpu: Counter[str] = field(default_factory=Counter)
    pss: Counter[str] = field(default_factory=Counter)
    peak_bytes: int = 0

    def note(self, pss: Counter[str]) -> None:
        self.peak_bytes = max(self.peak_bytes, pss.total())
        self.pss |= pss

    @property
    def parts(self) -> str:
        """Return the cost of each part in one line."""
        return ", ".join(f"{part} {s:.2f} s {self.pss[part] >> 20} MiB" for part, s in self.cpu.most_common())


def _part(pid: int) -> str:
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return next((part for word, part in PARTS.items() if any(word in argument for argument in arguments)), "rank")


def _read(cost: Cost) -> dict[int, tuple[str, float]]:
    """Note the memory of all processes, and return the part and the CPU time of each."""
    found = {}
    pss: Counter[str] = Counter()
    for pid in tree(os.getpid())[1:]:
        try:
            part = _part(pid)
            found[pid] = part, cpu_s(pid)
            pss[part] += memory_bytes(pid)[1]
        except (OSError, IndexError):
            continue  # it has just ended
    cost.note(pss)
    return found


def run_job(code: str, environ: dict[str, str]) -> tuple[Cost, Cost]:
    """Return what a job costs until AFTER_S after its rank ended, and until all processes have ended."""
    cost = Cost()
    parts: dict[int, str] = {}
    rank = subprocess.Popen([sys.executable, "-P", "-c", code], env=environ)
    ended_at = float("inf")
    job: Cost | None = None
    while True:
        alive = _read(cost)
        parts = {pid: part for pid, (part, _) in alive.items()} | parts  # an ended process has no arguments
        while (waited := _reap()) is not None:
            pid, seconds = waited
            cost.cpu[parts.get(pid, "rank")] += seconds  # a shell that starts a daemon ends within a millisecond
            if pid == rank.pid:
                rank.returncode = 0
                ended_at = time.monotonic()
        if job is None and time.monotonic() > ended_at + AFTER_S:
            job = Cost(cost.cpu.copy(), cost.pss.copy(), cost.peak_bytes)
            for part, seconds in alive.values():
                job.cpu[part] += seconds
            for pid, (part, _) in alive.items():
                if part in ("agent", "receiver"):  # those end their own children
                    os.kill(pid, signal.SIGTERM)
        if job is not None and not alive:
            return job, cost
        time.sleep(READ_S)


def _reap() -> tuple[int, float] | None:
    """Return an ended child and its CPU seconds, with those of the children that it waited for."""
    try:
        pid, _, usage = os.wait4(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, usage.ru_utime + usage.ru_stime) if pid else None


def measure() -> list[Figure]:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            environ = os.environ | {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
            environ.pop("PYTHONDONTWRITEBYTECODE", None)

            def run(name: str, code: str) -> tuple[Cost, Cost]:
                Path(folder, name).mkdir()
                return run_job(code, environ | {"CHIPLOG_DIR": f"{folder}/{name}"})

            run("warm-up", JOB)
            job, whole = run("job", JOB)
            bare, _ = run("bare", BARE)
            imports, _ = run("imports", IMPORTS)
            begun = time.monotonic()
            with chiplog.connect(dir=f"{folder}/job") as client:
                n_points = client.sql("SELECT count(*) AS n FROM metrics").rows()[0]["n"]
            query_s = time.monotonic() - begun
    finally:
        ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)

    def beside(cpu: bool) -> str:
        pairs = {"the same as JSONL in bare Python": bare, IMPORTS: imports}
        return "; ".join(
            f"{name}: {cost.cpu.total():.2f} s" if cpu else f"{name}: {cost.peak_bytes >> 20} MiB"
            for name, cost in pairs.items()
        )

    name = f"{STEPS} steps at 5 Hz, no daemon ran before"
    return [
        Figure(f"{name}: CPU of all until 1 s after the rank", job.cpu.total(), "s", 0.6, yardstick=beside(True)),
        Figure(f"{name}: peak sum of PSS", job.peak_bytes / 2**20, "MiB", 110, yardstick=beside(False)),
        Figure(f"{name}: each part", len(job.cpu), "processes", yardstick=job.parts),
        Figure(
            "the same until all daemons have stopped, with the log applied: CPU",
            whole.cpu.total(),
            "s",
            yardstick=whole.parts,
        ),
        Figure("the same: peak sum of PSS", whole.peak_bytes / 2**20, "MiB", 110),
        Figure("the same: points in SQL afterwards", n_points, "", at_least=2 * STEPS, yardstick=f"{query_s:.2f} s"),
    ]
