"""What statistics of a node cost and miss: eight GPUs with every reading, eight ranks with eight workers each.

The GPUs are those of the library that stands in for NVML in tests: what a driver costs is not in these figures. Each
rank logs one metric a second.
"""

import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from tests.bench.figure import Figure, Node, cpu_s, fresh_node, percentile, tree
from tests.support.gpu_sampler import compile_library

GPUS = RANKS = WORKERS = 8
BEGIN_S = 12.0  # until every device has its slow metrics, too
WATCHED_S = float(os.environ.get("CHIPLOG_BENCH_STATISTICS_S", "60"))

RANK = f"""
import subprocess, sys, time, chiplog
number = sys.argv[1]
run = chiplog.init(project="bench", run_id="r", label="rank" + number, capture_console=False, gpu_device_ids=[number])
workers = [subprocess.Popen(["sleep", "100000"]) for _ in range({WORKERS})]
print("up", flush=True)
for step in range(100_000):
    time.sleep(1)
    run.log({{"loss": 1.0}}, step=step)
"""


def measure() -> list[Figure]:
    """Measure an agent and its sampler for a minute, or CHIPLOG_BENCH_STATISTICS_S."""
    with tempfile.TemporaryDirectory() as folder:
        compile_library(Path(folder))
        control = Path(folder) / "control"
        control.write_text(f"gpus={GPUS}")
        calls = Path(folder) / "calls"
        library = {
            "LD_LIBRARY_PATH": folder,
            "FAKE_NVML_CONTROL": str(control),
            "FAKE_NVML_CALLS": str(calls),
        }
        os.environ.update(library)
        try:
            with fresh_node() as node:
                ranks = [_start_rank(node, number) for number in range(RANKS)]
                try:
                    used = [f"pid{of}={rank.pid}:5000 busy{of}={rank.pid}:40" for of, rank in enumerate(ranks)]
                    control.write_text(" ".join([f"gpus={GPUS}", *used]))
                    return _watch(node, calls)
                finally:
                    for pid in [pid for rank in ranks for pid in tree(rank.pid)]:
                        os.kill(pid, 9)
                    for rank in ranks:
                        rank.wait()
        finally:
            for name in library:
                del os.environ[name]


def _start_rank(node: Node, number: int) -> "subprocess.Popen[bytes]":
    environ = node.environ | {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(RANKS)}
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(number)], env=environ, stdout=subprocess.PIPE)
    assert rank.stdout is not None
    rank.stdout.readline()
    return rank


def _watch(node: Node, calls: Path) -> list[Figure]:
    import chiplog

    time.sleep(BEGIN_S)
    pids = tree(node.processes["agent"].pid)
    held = _resources(pids)
    calls_before, before, begun = calls.stat().st_size, sum(map(cpu_s, pids)), time.monotonic()
    begun_us = time.time_ns() // 1000
    time.sleep(WATCHED_S)
    elapsed_s, percent = time.monotonic() - begun, sum(map(cpu_s, pids)) - before
    n_calls = calls.stat().st_size - calls_before
    pss_mib = sum(map(_pss_mib, pids))
    grown = [after - before for after, before in zip(_resources(pids), held, strict=True)]
    until_us = begun_us + int(elapsed_s * 1e6)
    time.sleep(3)  # until the last samples can be read
    with chiplog.connect(dir=node.place.root) as client:
        span = f"epoch_us(ts) >= {begun_us} AND epoch_us(ts) < {until_us}"
        query = f"SELECT device, epoch_us(ts) AS us FROM system_samples WHERE {span} GROUP BY ALL ORDER BY ALL"
        rows = client.sql(query).rows()
        [counted] = client.sql(f"SELECT count(*) AS n FROM system_samples WHERE {span}").rows()
    by_device: dict[str, list[int]] = {}
    for row in rows:
        if row["device"].startswith(("GPU-", "pid:")) or not row["device"]:  # others have another period
            by_device.setdefault(row["device"], []).append(row["us"])
    gaps_ms = [abs(later - earlier - 1_000_000) / 1000 for earlier, later in pairwise(by_device[""])]
    missed = 0
    for times in by_device.values():
        around = [begun_us, *times, until_us]  # a gap of two seconds misses one
        missed += sum(max(round((later - earlier) / 1e6) - 1, 0) for earlier, later in pairwise(around))
    beside = f"{len(by_device)} devices, {counted['n'] / elapsed_s:,.0f} values a second, {elapsed_s:.0f} s"
    return [
        Figure("statistics of 8 GPUs and 8 × 8 processes: CPU", 100 * percent / elapsed_s, "%", 2.0, yardstick=beside),
        Figure("statistics: memory of agent and sampler", pss_mib, "MiB PSS", 80.0),
        Figure("statistics: growth of their resident memory", grown[0] / 2**20, "MiB", yardstick=beside),
        Figure("statistics: growth of their descriptors", grown[1], "", 0.0, yardstick=beside),
        Figure("statistics: seconds without a sample, all devices", missed, "", 0.0, yardstick=beside),
        Figure("statistics: jitter of the host's samples, p99", percentile(gaps_ms, 0.99), "ms", 10.0),
        Figure("statistics: field calls per GPU and second", n_calls / GPUS / elapsed_s, "", 1.05),
    ]


def _resources(pids: list[int]) -> tuple[int, int]:
    """Return the resident bytes and the descriptors of processes, without those that one has open for a moment."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    descriptors = min(sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids) for _ in range(100))
    return pages * os.sysconf("SC_PAGE_SIZE"), descriptors


def _pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
