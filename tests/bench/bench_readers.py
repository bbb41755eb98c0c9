"""64 million points, 200,000 more a second, and 16 readers beside: what the readers cost the writers, and the reverse.

Four ranks log a hundred metrics 500 times a second. Each reader asks for one series of 5,000 points once a second, as a
page that is open does. `CHIPLOG_BENCH_ROOT` names the data of bench_store.py, which is copied.
"""

import datetime
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import chiplog
from tests.bench.bench_store import IDLE_S, store
from tests.bench.figure import Figure, Node, percentile, start_python

RANKS = 4
READERS = 16
WARM_UP_S = 8.0
SECONDS = 20.0
PAUSE_S = 0.05
EPOCH = datetime.datetime(1970, 1, 1)
SERIES = "SELECT step, ts, value FROM metrics WHERE run_id = 'large-1' AND label = $label AND key = 'train/metric_7'"
NEWEST = "SELECT step, ts FROM metrics WHERE run_id = $run AND label = 'probe' AND key = 'probe' AND step > $step"

RANK = """
import sys, time, chiplog
run = chiplog.init(project="bench", run_id=sys.argv[1], label=f"rank{sys.argv[2]}", primary=sys.argv[2] == "0")
data = {f"train/metric_{i}": 0.1 * i for i in range(100)}
took, step = [], 0
begun = time.monotonic()
while (now := time.monotonic()) < begun + float(sys.argv[3]):
    if now < begun + step / 500:
        time.sleep(begun + step / 500 - now)
    before = time.perf_counter_ns()
    run.log(data, step=step)
    took.append(time.perf_counter_ns() - before)
    step += 1
run.finish()
took.sort()
print((step, took[len(took) // 2], took[len(took) * 99 // 100]))
"""


class Readers:
    """Clients that ask for one series each, once a second."""

    def __init__(self, root: Path) -> None:
        self.took: list[float] = []
        self.n_failed = 0
        self._root, self._stop = root, threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(number,)) for number in range(READERS)]

    def _read(self, number: int) -> None:
        self._stop.wait(number / READERS)
        with chiplog.connect(dir=self._root) as client:
            while not self._stop.is_set():
                begun = time.perf_counter()
                try:
                    rows = client.sql(SERIES, {"label": f"rank{number}"}).arrow().num_rows
                    self.n_failed += rows != 5_000
                except chiplog.QueryError:
                    self.n_failed += 1
                self.took.append(time.perf_counter() - begun)
                self._stop.wait(1.0)

    @contextmanager
    def reading(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()


def visible(root: Path, run_id: str, seconds: float) -> list[float]:
    """Log one value 20 times a second, from a process of its own; return the seconds until SQL has it."""
    code = (
        "import sys, time, chiplog\n"
        "run = chiplog.init(project='bench', run_id=sys.argv[1], label='probe')\n"
        "for step in range(int(20 * float(sys.argv[2]))): run.log({'probe': 1.0}, step=step); time.sleep(0.05)\n"
    )
    environ = Node(root, agent=False, collector=False).environ
    probe = start_python(code, environ, run_id, seconds)
    latencies: list[float] = []
    step = -1
    with chiplog.connect(dir=root) as client:
        while probe.poll() is None:
            rows: list[Any] = client.sql(NEWEST, {"run": run_id, "step": step}).tuples()
            seen_at = time.time()
            latencies += [seen_at - (ts - EPOCH).total_seconds() for _, ts in rows]
            step = max((row[0] for row in rows), default=step)
            time.sleep(PAUSE_S)
    return latencies


def ingest(node: Node, run_id: str) -> tuple[float, float, float, list[float]]:
    """Log for a while; return points/s, p50 and p99 of log() in µs, and the seconds until values were visible."""
    total_s = WARM_UP_S + SECONDS
    ranks = [start_python(RANK, node.environ, run_id, rank, total_s) for rank in range(RANKS)]
    time.sleep(WARM_UP_S)
    latencies = visible(node.place.root, run_id, SECONDS)
    said = [eval(rank.communicate()[0].splitlines()[-1]) for rank in ranks]
    rate = sum(steps for steps, _, _ in said) * 100 / total_s
    p50 = sorted(middle for _, middle, _ in said)[RANKS // 2]
    return rate, p50 / 1e3, max(slow for _, _, slow in said) / 1e3, latencies


def measure() -> list[Figure]:
    with store() as (kept, _), tempfile.TemporaryDirectory() as copies:
        root = Path(copies) / "root"
        copytree(kept, root, ignore=ignore_patterns("run"))
        node = Node(root)
        time.sleep(IDLE_S)
        alone = ingest(node, "alone")
        readers = Readers(root)
        with readers.reading():
            beside = ingest(node, "beside-readers")
        node.stop()
    rate = f"{alone[0]:,.0f} points/s alone, {beside[0]:,.0f} beside"
    calls = f"p50 / p99 {alone[1]:.0f} / {alone[2]:.0f} µs alone, {beside[1]:.0f} / {beside[2]:.0f} beside; {rate}"
    reads = f"{len(readers.took)} queries, p50 {1e3 * percentile(readers.took, 0.5):.0f} ms, {readers.n_failed} failed"
    figures = [
        Figure("p99 of log() beside 16 readers", beside[2] / alone[2], "times", at_most=2.0, yardstick=calls),
        Figure("one series, p95 of 16", 1e3 * percentile(readers.took, 0.95), "ms", at_most=500, yardstick=reads),
    ]
    for name, (_, _, _, latencies) in (("at 64 M", alone), ("and beside 16 readers", beside)):
        for share, goal in ((0.5, 250), (0.99, 1_000)):
            figures.append(
                Figure(
                    f"visible in SQL {name}, p{100 * share:.0f}",
                    1e3 * percentile(latencies, share),
                    "ms",
                    at_most=goal,
                    yardstick=f"{len(latencies)} values",
                )
            )
    return figures
