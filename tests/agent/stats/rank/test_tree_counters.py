"""Counters of ranks' trees, read from real processes that write to a disk, wait, and end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.rank import tree_counters
from chiplog_agent.stats.rank.process_tree import ProcessStats, Stat
from chiplog_agent.stats.rank.tree_counters import RankCounters, _Total
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

# A rank on whose input each line is Python to run; children are forked.
RANK = """
import os, sys, time
def write(kib):
    with open(sys.argv[1] + str(os.getpid()), "ab") as file:
        file.write(b"x" * (kib << 10))
        file.flush()
        os.fsync(file.fileno())
    print(os.getpid(), flush=True)
def child(kib, ends):
    pid = os.fork()
    if pid == 0:
        write(kib)
        while not os.path.exists(ends): time.sleep(0.01)
        os._exit(0)
    return pid
for line in iter(sys.stdin.readline, ""):
    exec(line)
    print("done", flush=True)
"""


class Rank:
    """A process, and what the sources say about it."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(folder / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.processes = ProcessStats()
        self.processes.watch([self.pid])
        self.source = RankCounters(self.processes)

    def do(self, code: str) -> list[str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            lines.append(line.strip())
            if "done" in lines and ("child" not in code or len(lines) == 2):
                break
        return [line for line in lines if line != "done"]

    def read(self) -> dict[str, float]:
        self.processes.read()
        [(device, names, values)] = self.source.read()
        assert device == f"pid:{self.pid}"
        return dict(zip(names, values, strict=True))


def written(*pids: int) -> float:
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/io").read_text().splitlines()]
    return float(sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes")))


def switches(*pids: int) -> float:
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return float(sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line))


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    rank = Rank(tmp_path)
    rank.do("write(64)")
    if not written(rank.pid):
        pytest.skip("the tests' folder is on no disk")
    yield rank
    (tmp_path / "end").touch()
    rank.process.communicate()


def test_written_bytes_are_those_of_proc_and_count_once_when_a_child_was_waited_for(rank: Rank, tmp_path: Path) -> None:
    assert rank.read()["process.io.write"] == written(rank.pid) >= 64 << 10
    [child] = map(int, rank.do(f"pid = child(256, {str(tmp_path / 'end')!r})"))
    both = written(rank.pid, child)
    assert rank.read()["process.io.write"] == both >= 320 << 10
    (tmp_path / "end").touch()
    rank.do("os.waitpid(pid, 0)")
    assert written(rank.pid) == both, "the kernel passes it on to the parent"
    assert rank.read()["process.io.write"] == both
    rank.do("write(4)")
    assert rank.read()["process.io.write"] == written(rank.pid) > both


def test_bytes_of_a_child_that_no_one_waits_for_stay(rank: Rank, tmp_path: Path) -> None:
    rank.do("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    [child] = map(int, rank.do(f"pid = child(256, {str(tmp_path / 'end')!r})"))
    both = written(rank.pid, child)
    assert rank.read()["process.io.write"] == both
    (tmp_path / "end").touch()
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the end of the child")
    assert written(rank.pid) < both
    assert rank.read()["process.io.write"] == both


@proves(
    "waited-rank-io-apart",
    "bytes of a rank are not its parent's, too, once the parent has waited for it",
    value="0.0",
)
def test_bytes_of_a_child_that_is_a_rank_itself_are_not_its_parents(rank: Rank, tmp_path: Path) -> None:
    [child] = map(int, rank.do(f"pid = child(256, {str(tmp_path / 'end')!r})"))
    rank.processes.watch([rank.pid, child])
    rank.processes.read()
    rank.processes.read()
    own = written(rank.pid)
    found = {device: values[1] for device, _, values in rank.source.read()}
    assert found == {f"pid:{rank.pid}": own, f"pid:{child}": written(child)}
    (tmp_path / "end").touch()
    rank.do("os.waitpid(pid, 0)")
    assert written(rank.pid) > own
    assert rank.read()["process.io.write"] == own


def test_switches_lie_between_readings_of_proc_and_do_not_fall(rank: Rank, tmp_path: Path) -> None:
    [child] = map(int, rank.do(f"pid = child(4, {str(tmp_path / 'end')!r})"))
    before = switches(rank.pid, child)
    value = rank.read()["process.context_switches"]
    assert before <= value <= switches(rank.pid, child)
    (tmp_path / "end").touch()
    rank.do("os.waitpid(pid, 0)")
    after = rank.read()["process.context_switches"]
    assert after >= value > switches(rank.pid)


def test_a_rank_that_has_gone_is_absent_and_another_under_its_pid_begins_anew(rank: Rank) -> None:
    assert rank.read()["process.io.write"] > 0
    members = rank.processes.trees()[rank.pid]
    members[rank.pid] = members[rank.pid]._replace(start_ticks=1)
    rank.source.read()
    assert rank.source._totals[rank.pid].start_ticks == 1
    rank.processes.watch([])
    assert rank.source.read() == [] and rank.source._totals == {}


class _Trees(ProcessStats):
    """This process and one that has ended."""

    def trees(self) -> dict[int, dict[int, Stat]]:
        stat = Stat(True, 1, 0, 0, 1, 1)
        return {os.getpid(): {os.getpid(): stat, 2**22 + 1: stat}}


def test_a_process_that_ended_in_between_is_left_out() -> None:
    [(_, names, _)] = RankCounters(_Trees()).read()
    assert names == ("process.io.read", "process.io.write", "process.context_switches")


@pytest.mark.parametrize("error", [PermissionError(), FileNotFoundError()], ids=["another user's", "no such file"])
def test_what_cannot_be_read_of_one_process_is_absent_and_the_rest_is_there(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tree_counters.read_file

    def read(path: str) -> bytes:
        if path.endswith("/io"):
            raise error
        return real(path)

    monkeypatch.setattr(tree_counters, "read_file", read)
    [(_, names, _)] = RankCounters(_Trees()).read()
    assert names == ("process.context_switches",)


def test_a_counter_that_falls_adds_nothing() -> None:
    total = _Total(passes_on=False)
    for value in (5.0, 3.0, 4.0):
        total.add({(1, 1): value}, {})
    assert total.value == 6.0


def test_a_child_whose_parent_is_read_before_it_waits_counts_once() -> None:
    total = _Total(passes_on=True)
    total.add({(1, 1): 10.0, (2, 2): 100.0}, {})
    total.add({(1, 1): 11.0}, {})  # the child has ended
    total.add({(1, 1): 112.0}, {})  # and is part of its parent's counter: 100, and 1 of the parent's own
    assert total.value == pytest.approx(112.0, abs=1.0)
