"""What control groups of ranks use: a real group beside its own files, and made-up trees of both versions."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.rank.group_use import RankGroupUse, read_groups
from chiplog_agent.stats.rank.process_tree import ProcessStats
from tests.support.waiting import wait_until

V2_FILES = {
    "cgroup.events": "populated 1\n",
    "cpu.max": "max 100000\n",
    "cpu.stat": "usage_usec 7000000\nnr_periods 40\nnr_throttled 4\nthrottled_usec 500000\n",
    "pids.current": "12\n",
    "memory.events": "low 0\noom 3\noom_kill 2\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\nfull avg10=0.00 total=1\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
}
ALL_V2 = {
    "cgroup.cpu.usage": 7.0,
    "cgroup.cpu.throttled": 0.5,
    "cgroup.cpu.periods": 40.0,
    "cgroup.cpu.throttled_periods": 4.0,
    "cgroup.pids": 12.0,
    "cgroup.memory.oom_kills": 2.0,
    "cgroup.pressure.cpu": 1.5,
    "cgroup.pressure.memory": 0.25,
    "cgroup.pressure.io": 0.0,
}


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Process 7 in /job/rank of a cgroup v2 mount."""
    mount = tmp_path / "cgroup"
    write(tmp_path / "proc/self", {"mountinfo": f"25 1 0:22 / {mount} rw - cgroup2 cgroup2 rw\n"})
    write(tmp_path / "proc/7", {"cgroup": "0::/job/rank\n"})
    write(mount, {"cpu.stat": "usage_usec 1\n", "cpu.pressure": "some total=1\n"})
    write(mount / "job", V2_FILES)
    write(mount / "job/rank", V2_FILES)
    return tmp_path


def read(tree: Path) -> dict[str, float]:
    return read_groups(7, str(tree / "proc"))


def test_version_2_without_a_limit_shows_the_ranks_own_group(tree: Path) -> None:
    write(tree / "cgroup/job", {"cpu.stat": "usage_usec 1\n"})
    assert read(tree) == ALL_V2


def test_the_tightest_cpu_limit_above_a_rank_counts_with_its_groups_numbers(tree: Path) -> None:
    write(tree / "cgroup/job/rank", {"cpu.max": "400000 100000\n"})
    write(tree / "cgroup/job", {"cpu.max": "150000 100000\n", "cpu.stat": "usage_usec 9000000\nthrottled_usec 1\n"})
    values = read(tree)
    assert (values["cgroup.cpu.limit"], values["cgroup.cpu.usage"]) == (1.5, 9.0)
    assert values["cgroup.cpu.throttled"] == 1e-6
    assert "cgroup.cpu.periods" not in values


def test_version_1_has_its_controllers_at_mounts_of_their_own(tree: Path) -> None:
    fs = tree / "v1"
    names = ("cpu", "cpuacct", "pids", "memory")
    write(tree / "proc/7", {"cgroup": "".join(f"{n}:{name}:/docker/a\n" for n, name in enumerate(names, 1)) + "0::/\n"})
    mounts = [f"3{n} 1 0:3{n} /docker/a {fs / name} rw - cgroup cgroup rw,{name}\n" for n, name in enumerate(names)]
    write(tree / "proc/self", {"mountinfo": "".join(mounts) + f"40 1 0:22 / {tree}/cgroup rw - cgroup2 cgroup2 rw\n"})
    write(
        fs / "cpu",
        {
            "cpu.cfs_quota_us": "50000\n",
            "cpu.cfs_period_us": "100000\n",
            "cpu.stat": "nr_periods 8\nnr_throttled 3\nthrottled_time 2000000000\n",
        },
    )
    write(fs / "cpuacct", {"cpuacct.usage": "3500000000\n"})
    write(fs / "pids", {"pids.current": "5\n"})
    write(fs / "memory", {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"})
    expected = {
        "cgroup.cpu.limit": 0.5,
        "cgroup.cpu.usage": 3.5,
        "cgroup.cpu.throttled": 2.0,
        "cgroup.cpu.periods": 8.0,
        "cgroup.cpu.throttled_periods": 3.0,
        "cgroup.pids": 5.0,
        "cgroup.memory.oom_kills": 1.0,
    }
    assert read(tree) == expected
    write(fs / "cpu", {"cpu.cfs_quota_us": "-1\n"})
    assert read(tree) == {name: value for name, value in expected.items() if name != "cgroup.cpu.limit"}


@pytest.mark.parametrize("cgroup", ["0::/\n", "0::/../other\n", "nonsense\n", ""])
def test_a_rank_without_a_group_of_its_own_has_no_values(tree: Path, cgroup: str) -> None:
    write(tree / "proc/7", {"cgroup": cgroup})
    assert read(tree) == {}
    assert read_groups(8, str(tree / "proc")) == {}


@pytest.mark.parametrize("text", ["", "nonsense\n", "1 2 3\n", "max\n", "0 0\n"])
def test_a_file_of_another_format_takes_only_its_own_values(tree: Path, text: str) -> None:
    for name in ("cpu.max", "memory.events", "cpu.pressure"):
        write(tree / "cgroup/job/rank", {name: text})
    missing = {"cgroup.memory.oom_kills", "cgroup.pressure.cpu"}
    assert read(tree) == {name: value for name, value in ALL_V2.items() if name not in missing}


def test_files_that_a_kernel_lacks_are_absent(tree: Path) -> None:
    for path in (tree / "cgroup/job/rank").iterdir():
        path.unlink()
    assert read(tree) == {}


CONTROLLERS = ("cpu", "cpuacct", "pids", "memory", "unified")


@pytest.fixture
def groups() -> Iterator[dict[str, Path]]:
    """Groups of this machine with a limit of 0.2 CPU, by controller; with v2 one group for all."""
    name = f"chiplog-use-{os.getpid()}"
    mount = Path("/sys/fs/cgroup")
    is_v2 = (mount / "cgroup.controllers").exists()
    folders = {controller: (mount / ("" if is_v2 else controller) / name) for controller in CONTROLLERS}
    try:
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        if is_v2:
            (folders["cpu"] / "cpu.max").write_text("20000 100000")
        else:
            (folders["cpu"] / "cpu.cfs_quota_us").write_text("20000")
        yield folders
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    finally:
        for folder in set(folders.values()):
            if folder.exists():
                folder.rmdir()


BURN = """
import os, sys, threading
for path in sys.argv[1:]: open(path, 'w').write(str(os.getpid()))
print('up', flush=True)
while True: pass
"""


def known(folders: dict[str, Path]) -> dict[str, float]:
    """Read the same values from the files of this machine's groups."""

    def number(controller: str, file: str, key: str = "", scale: float = 1.0) -> float | None:
        path = folders[controller] / file
        if not path.exists():
            return None
        for line in path.read_text().replace("total=", "total ").splitlines():
            words = line.split()
            if not key or (key in words and words[0] != "full"):
                return int(words[-1]) / scale
        return None

    found = {
        "cgroup.cpu.usage": number("cpuacct", "cpuacct.usage", scale=1e9)
        or number("cpu", "cpu.stat", "usage_usec", 1e6),
        "cgroup.cpu.throttled": number("cpu", "cpu.stat", "throttled_time", 1e9)
        or number("cpu", "cpu.stat", "throttled_usec", 1e6),
        "cgroup.cpu.periods": number("cpu", "cpu.stat", "nr_periods"),
        "cgroup.cpu.throttled_periods": number("cpu", "cpu.stat", "nr_throttled"),
        "cgroup.pids": number("pids", "pids.current"),
        "cgroup.memory.oom_kills": number("memory", "memory.events", "oom_kill")
        if (folders["memory"] / "memory.events").exists()
        else number("memory", "memory.oom_control", "oom_kill"),
        **{
            f"cgroup.pressure.{resource}": number("unified", f"{resource}.pressure", "some", 1e6)
            for resource in ("cpu", "memory", "io")
        },
    }
    return {name: value for name, value in found.items() if value is not None}


def test_what_a_ranks_groups_lack_is_one_line(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = ProcessStats()
    monkeypatch.setattr(processes, "trees", lambda: {7: {7}})
    source = RankGroupUse(processes, proc=str(tree / "proc"))
    source.read()
    assert source.missing == ""
    for folder in ("job/rank", "job"):
        (tree / "cgroup" / folder / "pids.current").unlink()
    source.read()
    assert source.missing.startswith("cgroup.pids: absent for ranks")
    (tree / "proc/self/mountinfo").write_text("")
    assert source.read() == [] and "cgroup.cpu.usage, " in source.missing and "limit" not in source.missing


def test_values_of_a_throttled_rank_lie_between_readings_of_its_groups(groups: dict[str, Path]) -> None:
    paths = sorted({str(folder / "cgroup.procs") for folder in groups.values()})
    with subprocess.Popen([sys.executable, "-c", BURN, *paths], stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None and rank.stdout.readline() == b"up\n"
            processes = ProcessStats()
            processes.watch([rank.pid])
            source = RankGroupUse(processes)
            assert source.read() == [], "not before the rank's tree is known"
            processes.read()
            wait_until(lambda: known(groups).get("cgroup.cpu.throttled", 0.0) > 0.2, "a throttled group")
            before = known(groups)
            [(device, names, values)] = source.read()
            after = known(groups)
        finally:
            rank.kill()
    found = dict(zip(names, values, strict=True))
    assert device == f"pid:{rank.pid}"
    assert found.pop("cgroup.cpu.limit") == 0.2
    assert found.keys() == before.keys()
    assert {name for name, value in found.items() if not before[name] <= value <= after[name]} == set()
    assert found["cgroup.cpu.throttled_periods"] >= 1 and found["cgroup.pids"] == 1
