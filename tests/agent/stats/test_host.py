"""The host's numbers, read from the real /proc; control groups from real files of both versions."""

import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chiplog_agent.stats.host import HostStats
from chiplog_agent.stats.process_tree import ProcessStats
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

EVERYWHERE = {
    "system.cpu.utilization",
    "system.cpu.load_average.1m",
    "system.memory.usage",
    "system.memory.limit",
    "system.paging.faults",
    "system.filesystem.usage",
    "system.network.io.receive",
    "system.network.io.transmit",
    "system.network.errors",
    "system.network.dropped",
}

CUMULATIVE = ("system.paging.faults", "system.disk.io.", "system.network.", "system.pressure.")  # and what begins so


def read(stats: HostStats) -> dict[str, float]:
    names, values = stats.sample()
    return dict(zip(names, values, strict=True))


def test_every_metric_that_each_linux_has_is_sampled() -> None:
    stats = HostStats()
    assert set(read(stats)) >= EVERYWHERE
    assert stats.lines == []


def test_names_are_the_same_from_sample_to_sample() -> None:
    stats = HostStats()
    assert len({stats.sample()[0] for _ in range(5)}) == 1


def test_pressure_is_sampled_exactly_where_the_kernel_has_it() -> None:
    sample = read(HostStats())
    for resource in ("cpu", "memory", "io"):
        try:
            present = bool(Path(f"/proc/pressure/{resource}").read_text())
        except OSError:
            present = False
        assert (f"system.pressure.{resource}" in sample) == present


def test_a_busy_core_shows_in_the_utilization() -> None:
    stats = HostStats()
    read(stats)
    start = time.process_time()
    while time.process_time() - start < 0.3:
        pass
    assert 0.0 < read(stats)["system.cpu.utilization"] <= 1.0


def test_touched_pages_show_in_the_faults() -> None:
    stats = HostStats()
    before = read(stats)["system.paging.faults"]
    with mmap.mmap(-1, 1000 * mmap.PAGESIZE) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        for offset in range(0, len(memory), mmap.PAGESIZE):
            memory[offset] = 1
    assert read(stats)["system.paging.faults"] >= before + 1000


def test_cumulative_values_do_not_fall() -> None:
    stats = HostStats()
    before, after = read(stats), read(stats)
    for name in before:
        if name.startswith(CUMULATIVE):
            assert after[name] >= before[name], name


def test_memory_in_use_is_less_than_its_limit() -> None:
    sample = read(HostStats())
    assert 0 < sample["system.memory.usage"] < sample["system.memory.limit"] <= psutil.virtual_memory().total


def test_a_reader_that_fails_is_left_out_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = HostStats()
    whole = stats.sample()[0]

    def fail(**_: Any) -> None:
        raise OSError("out of order")

    monkeypatch.setattr(psutil, "net_io_counters", fail)
    names = {stats.sample()[0] for _ in range(3)}.pop()
    assert set(whole) - set(names) == {name for name in whole if name.startswith("system.network")}
    assert len(stats.lines) == 1 and "out of order" in stats.lines[0]
    monkeypatch.undo()
    assert stats.sample()[0] == whole


def test_memory_is_the_hosts_also_for_an_agent_in_a_limited_group(group: Path) -> None:
    """The process below is in a control group of its own with a limit, and reads the host's numbers."""
    code = (
        "import os, sys\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "from chiplog_agent.stats.host import HostStats\n"
        "print(dict(zip(*HostStats().sample()))['system.memory.limit'])"
    )
    command = [sys.executable, "-c", code, str(group / "cgroup.procs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert float(done.stdout) == psutil.virtual_memory().total, done.stderr


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of this machine with a memory limit of 256 MiB, of v1 or v2."""
    for mount, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(mount) / f"chiplog-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / limit).write_text(str(256 << 20))
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        yield folder
        folder.rmdir()  # empty, for its processes have ended
        return
    pytest.skip("no control group can be made here")


V2 = "30 23 0:26 / MOUNT rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@proves(
    "own-memory-group", "each rank shows the memory of its own control group", part="rank.pid", new="min(self._ranks)"
)
def test_the_agents_host_and_each_ranks_group_are_told_apart(tmp_path: Path) -> None:
    """Two ranks in jobs with limits of their own; `proc` holds their files, the processes are real."""
    ranks = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    try:
        proc = tmp_path / "proc"
        (proc / "self").mkdir(parents=True)
        (proc / "self/mountinfo").write_text(V2.replace("MOUNT", str(tmp_path / "fs")))
        for number, rank in enumerate(ranks):
            job = tmp_path / f"fs/job{number}"
            job.mkdir(parents=True)
            for name, text in {"max": (number + 1) << 20, "current": 1000 + number, "stat": "anon 1\n"}.items():
                (job / f"memory.{name}").write_text(f"{text}\n")
            (proc / str(rank.pid)).mkdir()
            (proc / str(rank.pid) / "cgroup").write_text(f"0::/job{number}\n")
        stats = ProcessStats(proc=str(proc))
        stats.watch([rank.pid for rank in ranks])
        stats.sample()
        found = [dict(zip(names, values, strict=True)) for _, names, values in stats.sample()]
        memory = [(of["cgroup.memory.usage"], of["cgroup.memory.limit"]) for of in found]
        by_rank = dict(zip(sorted(rank.pid for rank in ranks), memory, strict=True))
        assert by_rank == {rank.pid: (1000 + n, (n + 1) << 20) for n, rank in enumerate(ranks)}
        (tmp_path / "fs/job0/memory.max").write_text("max\n")
        shutil.rmtree(tmp_path / "fs/job1")  # the job has ended under its rank
        names = dict(
            zip([rank.pid for rank in ranks], [{n for n in s[1] if "cgroup" in n} for s in stats.sample()], strict=True)
        )
        assert sorted(map(sorted, names.values())) == [[], ["cgroup.memory.usage"]]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_a_rank_in_a_limited_group_of_this_machine_shows_that_limit(group: Path) -> None:
    code = (
        "import os, sys\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "kept = b'x' * (32 << 20)\nprint('up', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(group / "cgroup.procs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"up\n"
            stats = ProcessStats()
            stats.watch([rank.pid])
            stats.sample()
            [(_, names, values)] = stats.sample()
            found = dict(zip(names, values, strict=True))
            assert found["cgroup.memory.limit"] == 256 << 20
            assert 32 << 20 < found["cgroup.memory.usage"] < 256 << 20
        finally:
            rank.kill()
