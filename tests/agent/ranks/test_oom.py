"""An out-of-memory kill is distinguished from another kill: real groups, real kills.

Root makes a control group below this machine's memory controller, v1 or v2. Where that is not possible, the test is
skipped with the reason.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_agent.ranks.oom import OomWatcher
from chiplog_agent.stats.rank.cgroup import find_groups
from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until

MIB = 1 << 20
LIMIT_BYTES = 96 * MIB
# It joins the group before its imports, reports that it is ready, and allocates memory on request.
GREEDY = """
import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
print("ready", flush=True)
sys.stdin.readline()
taken = [bytearray(os.urandom(1 << 20)) for _ in range(1 << 10)]
"""
RANK = """
import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
import chiplog
run = chiplog.init(run_id="r", label="rank0", capture_console=False)
run.log({"x": 1.0})
sys.stdin.readline()
taken = [bytearray(os.urandom(1 << 20)) for _ in range(1 << 10)]
"""


def _is_removed(group: Path) -> bool:
    """Remove a group; return False while the kernel still counts a process in it that was killed."""
    try:
        group.rmdir()
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory, made by root below the one that this process is in."""
    try:
        version, folders = find_groups("self", "/proc")
        folder = Path(folders[-1]) / f"chiplog-test-{os.getpid()}"
        folder.mkdir()
    except (OSError, LookupError) as error:
        pytest.skip(f"no control group of memory can be made here: {error}")
    try:
        limit = folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")
        if not limit.exists():
            pytest.skip("control groups of this machine have no memory controller")
        limit.write_text(str(LIMIT_BYTES))
        yield folder
    finally:
        wait_until(lambda: _is_removed(folder), "the end of the processes in the group")


@pytest.mark.parametrize("log", ["/dev/kmsg", "/nowhere"], ids=["kernel log", "counts alone"])
def test_a_process_that_its_group_had_no_memory_for_is_told_from_one_that_somebody_killed(
    group: Path, log: str
) -> None:
    kills = OomWatcher(kernel_log=log)
    processes = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", GREEDY, str(group)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    greedy, other = processes
    for number, process in enumerate(processes):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        kills.watch(bytes([number]) * 16, process.pid)
    assert greedy.stdin is not None
    greedy.stdin.write(b"\n")
    greedy.stdin.flush()
    assert greedy.wait(WAIT_S) == -9
    kill = kills.kill_of(bytes(16), greedy.pid)
    assert kill is not None
    assert kill.group == str(group)
    is_read = os.access(log, os.R_OK) and os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    assert kill.source == ("kernel log" if is_read else "cgroup")
    other.kill()
    assert other.wait(WAIT_S) == -9
    assert kills.kill_of(b"\1" * 16, other.pid) is None, "one kill is counted once"
    for number in range(2):
        kills.forget(bytes([number]) * 16)
    assert kills._groups == {}
    for process in processes:
        process.communicate()


@pytest.mark.full
def test_a_rank_that_had_no_memory_is_crashed_for_that_reason(node: Node, group: Path) -> None:
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(group)], stdin=subprocess.PIPE, text=True)
    node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"] == 1)
    rank.communicate("\n", timeout=WAIT_S)
    assert rank.returncode == -9
    [label] = node.until("SELECT state, exit_signal, reason FROM labels", lambda rows: rows[0]["state"] != "running")
    assert (label["state"], label["exit_signal"]) == ("crashed", 9)
    assert label["reason"].startswith("out of memory: ")
    [event] = node.sql("SELECT body->>'cgroup' AS cgroup FROM events WHERE kind = 'crashed'")
    assert event == {"cgroup": str(group)}


def test_a_process_of_no_group_that_can_be_seen_is_watched_in_vain(tmp_path: Path) -> None:
    kills = OomWatcher(proc=str(tmp_path), kernel_log="/nowhere")
    kills.watch(bytes(16), os.getpid())
    assert kills.kill_of(bytes(16), os.getpid()) is None
    kills.forget(bytes(16))


def test_who_watches_no_more_keeps_no_descriptor_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.touch()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        OomWatcher(proc=str(tmp_path), kernel_log=str(log))
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_the_log_says_of_an_earlier_process_with_the_same_pid_is_not_this_ones(tmp_path: Path) -> None:
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":
        pytest.skip("the kernel's log is not read in a PID namespace of its own")
    log = tmp_path / "kmsg"
    log.touch()
    kills = OomWatcher(proc=str(tmp_path), kernel_log=str(log))

    def killed(pid: int) -> None:
        with log.open("a") as lines:
            lines.write(f"3,1,1,-;Out of memory: Killed process {pid} (python) anon-rss:4096kB\n")

    killed(77)
    kills.watch(bytes(16), 77)
    assert kills.kill_of(bytes(16), 77) is None
    kills.watch(b"1" * 16, 78)
    killed(78)
    kill = kills.kill_of(b"1" * 16, 78)
    assert kill is not None
    assert kill.source == "kernel log"
