"""Proportional memory of ranks, beside sums over the mappings of real processes, and what it costs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.rank import pss
from chiplog_agent.stats.rank.process_tree import ProcessStats
from chiplog_agent.stats.rank.pss import RankPss, pss_bytes
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

SHARED_MIB = 64
RANK = f"""
import os, sys
kept = bytearray(os.urandom(1 << 20)) * {SHARED_MIB}
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.write(1, b"child\\n")
        sys.stdin.read()
        os._exit(0)
os.write(1, b"up\\n")
sys.stdin.read()
"""
Start = Callable[[int], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a rank with some children, which share its memory."""
    ranks: list[subprocess.Popen[str]] = []

    def run(children: int) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", RANK, str(children)]
        rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ranks.append(rank)
        assert rank.stdout is not None
        assert sorted(rank.stdout.readline() for _ in range(children + 1)) == ["child\n"] * children + ["up\n"]
        return rank

    yield run
    for rank in ranks:
        rank.communicate()


def watching(*pids: int) -> tuple[ProcessStats, RankPss]:
    processes = ProcessStats()
    processes.watch(pids)
    processes.read()
    return processes, RankPss(processes)


def known(pids: list[int], key: str) -> int:
    """Return the sum over all mappings of some processes, in bytes."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps").read_text().splitlines()]
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def until_summed(source: RankPss, wait_s: float = WAIT_S) -> list[tuple[str, dict[str, float]]]:
    ends = time.monotonic() + wait_s
    while time.monotonic() < ends:
        readings = source.read()
        if readings:
            return [(device, dict(zip(names, values, strict=True))) for device, names, values in readings]
        time.sleep(0.05)
    return []


def test_shared_memory_counts_once_and_the_sum_is_that_of_the_kernel(start: Start) -> None:
    rank = start(2)
    processes, source = watching(rank.pid)
    pids = list(processes.trees()[rank.pid])
    assert len(pids) == 3
    before = known(pids, "Pss")
    begun = time.monotonic()
    [(device, values)] = until_summed(source)
    assert device == f"pid:{rank.pid}"
    assert values["process.memory.pss"] == pytest.approx((before + known(pids, "Pss")) / 2, rel=0.01)
    assert known(pids, "Rss") - values["process.memory.pss"] > 2 * (SHARED_MIB << 20)
    assert 0 <= values["process.memory.pss.age"] <= time.monotonic() - begun


def test_a_sum_is_taken_again_only_when_it_is_old(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = watching(start(0).pid)
    assert until_summed(source)
    assert until_summed(source, 0.3) == []
    monkeypatch.setattr(pss, "SLOW_S", 0.1)
    assert until_summed(source)


@proves("pss-bounded-cpu", "reading proportional memory uses a small share of a core")
def test_the_cpu_time_is_a_small_share(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bound, 21 processes each 0.1 s take about 10 % of a core."""
    monkeypatch.setattr(pss, "SLOW_S", 0.1)
    monkeypatch.setattr(pss, "_CREDIT_S", 0.0)
    _, source = watching(start(20).pid)
    begun, spent_s, slowest_s = time.monotonic(), 0.0, 0.0
    n_reads = 0
    while time.monotonic() - begun < 4.0:
        before_s = time.thread_time()
        source.read()
        took_s = time.thread_time() - before_s
        spent_s += took_s
        slowest_s = max(slowest_s, took_s)
        n_reads += took_s > 0.0001
        time.sleep(0.05)
    assert n_reads >= 1
    assert spent_s < 0.002 * 4.0 + slowest_s + 0.008, "80 calls that read nothing take up to 0.1 ms each"


def test_a_process_that_may_not_be_read_takes_the_sum_of_its_rank_only(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [start(1), start(0)]
    monkeypatch.setattr(pss, "_CPU_SHARE", 1.0)
    processes, source = watching(*(rank.pid for rank in ranks))
    [hidden] = processes.trees()[ranks[0].pid].keys() - {ranks[0].pid}

    def read(pid: int) -> int:
        if pid == hidden:
            raise PermissionError
        return pss_bytes(pid)

    monkeypatch.setattr(pss, "pss_bytes", read)
    assert [device for device, _ in until_summed(source)] == [f"pid:{ranks[1].pid}"]


def test_processes_that_end_are_left_out(start: Start) -> None:
    rank = start(1)
    processes, source = watching(rank.pid)
    [child] = processes.trees()[rank.pid].keys() - {rank.pid}
    os.kill(child, 9)
    wait_until(lambda: ") Z " in Path(f"/proc/{child}/stat").read_text(), "the end of the child")
    [(_, values)] = until_summed(source)
    assert values["process.memory.pss"] == pytest.approx(known([rank.pid], "Pss"), rel=0.01)
    rank.communicate()
    processes.read()
    source._summed_at.clear()
    assert until_summed(source, 0.2) == []
