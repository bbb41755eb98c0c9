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

from chiplog_agent.stats.cgroup import MemoryGroup
from chiplog_agent.stats.host import HostStats
from chiplog_agent.stats.process_tree import ProcessStats
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

GIB = 1 << 30
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


def tree(root: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> MemoryGroup:
    """Make a /proc and a cgroup mount of real files, and return what is found in them."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mountinfo.replace("MOUNT", str(root / "fs")))
    for name, text in files.items():
        path = root / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return MemoryGroup(proc=str(root / "proc"))


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
V1 = "35 31 0:32 /docker/abc MOUNT rw - cgroup cgroup rw,memory\n36 31 0:33 / /x rw - cgroup2 cgroup2 rw\n"


def test_the_tightest_limit_of_cgroup_v2_counts_without_its_page_cache(tmp_path: Path) -> None:
    files = {
        "job/memory.max": f"{4 * GIB}\n",
        "job/memory.current": f"{3 * GIB}\n",
        "job/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
        "job/step/memory.max": "max\n",
        "job/step/memory.current": "1\n",
        "job/step/memory.stat": "anon 1\n",
    }
    group = tree(tmp_path, "0::/job/step\n", V2, files)
    assert group.read(16 * GIB) == (2 * GIB, 4 * GIB)
    assert group.read(2 * GIB) == (1, None)  # the host has less, so no limit applies: usage of the process's own group


def test_a_limit_that_changes_is_seen(tmp_path: Path) -> None:
    files = {"memory.max": "max\n", "memory.current": "5\n", "memory.stat": ""}
    group = tree(tmp_path, "0::/\n", V2, files)
    assert group.read(GIB) == (5, None)
    (tmp_path / "fs/memory.max").write_text("1000\n")
    assert group.read(GIB) == (5, 1000)


def test_cgroup_v1_counts_where_it_has_the_memory_controller(tmp_path: Path) -> None:
    files = {
        "memory.limit_in_bytes": f"{GIB}\n",
        "memory.usage_in_bytes": "5000\n",
        "memory.stat": "cache 9\ninactive_file 1\ntotal_inactive_file 1000\n",
    }
    group = tree(tmp_path, "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/docker/abc\n", V1, files)
    assert group.read(2 * GIB) == (4000, GIB)


def test_another_containers_group_is_not_mistaken_for_ones_own(tmp_path: Path) -> None:
    files = {"memory.max": "1000\n", "memory.current": "5\n", "memory.stat": ""}
    group = tree(tmp_path, "0::/../other\n", V2, files)
    assert group.read(GIB) is None


def test_a_host_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert tree(tmp_path, "", "22 27 0:21 / /proc rw - proc proc rw\n", {}).read(GIB) is None


def test_the_root_group_of_cgroup_v2_accounts_for_nothing(tmp_path: Path) -> None:
    """It has neither memory.max nor memory.current."""
    assert tree(tmp_path, "0::/\n", V2, {"cgroup.procs": ""}).read(GIB) is None


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
