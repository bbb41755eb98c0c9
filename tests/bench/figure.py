"""One measured figure beside its target and a yardstick that was measured in the same run."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chiplog_schemas.paths import Paths, paths_for_root


@dataclass
class Figure:
    """`value` in `unit`; `at_most` or `at_least` is the target; `yardstick` describes what was measured beside it."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    yardstick: str = ""

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_least is not None else "–"

    @property
    def reached(self) -> bool | None:
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median_of(runs: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(runs))


class Node:
    """A CHIPLOG_DIR with its own collector and agent, for one benchmark."""

    def __init__(
        self, root: Path, *agent_options: str, agent: bool = True, collector: bool = True, collector_first: str = ""
    ) -> None:
        self.place: Paths = paths_for_root(root)
        self.environ = os.environ | {"CHIPLOG_DIR": str(root)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        if collector:
            self.start("collector", "chiplog_collector", first=collector_first)
            self.wait_for(self.place.run / "query.sock")
        if agent:
            self.start("agent", "chiplog_agent", *agent_options)
            self.wait_for(self.place.run / "agent.sock")

    def start(self, name: str, module: str, *options: str, first: str = "") -> subprocess.Popen[bytes]:
        """Start a daemon; `first` is code that its process runs before."""
        code = f"{first}\nimport runpy\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        command = [sys.executable, "-P", "-c", code, *options]
        process = subprocess.Popen(command, env=self.environ, stderr=subprocess.DEVNULL)
        self.processes[name] = process
        return process

    def wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + 20
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} did not appear")
            time.sleep(0.01)

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        for name in ("agent", "collector"):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(30)


@contextmanager
def fresh_node(*agent_options: str, **options: Any) -> Iterator[Node]:
    """Run a node in a directory of its own."""
    with tempfile.TemporaryDirectory() as root, Node(Path(root), *agent_options, **options) as node:
        yield node


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    for child in children:
        found += tree(int(child))
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of one living process, its waited-for children included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> tuple[int, int]:
    """(resident, proportional) bytes of one living process."""
    rss = pss = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            rss = int(line.split()[1]) * 1024
        elif line.startswith("Pss:"):
            pss = int(line.split()[1]) * 1024
    return rss, pss


# What log() cannot go below in Python: a lock, msgpack and a copy into mapped memory. `data` is what is logged.
BARE = """
import mmap, msgpack, threading, time
memory = mmap.mmap(-1, 64 << 20)
packer, lock, at = msgpack.Packer(), threading.Lock(), 0
def bare(step):
    global at
    with lock:
        record = packer.pack([step, time.time_ns(), data])
        memory[at:at + len(record)] = record
        at += len(record)
"""


def start_python(code: str, environ: dict[str, str], *arguments: object) -> "subprocess.Popen[str]":
    """Start code in a fresh interpreter; its output is a pipe."""
    command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


def python(code: str, environ: dict[str, str] | None = None, *arguments: str) -> Any:
    """Run code in a fresh interpreter and evaluate what it printed."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        env=environ or dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    return eval(done.stdout.strip().splitlines()[-1])
