"""The memory of control groups, from made-up trees of /proc and of the mounts."""

from pathlib import Path

import pytest

from chiplog_agent.stats.rank.cgroup import Memory, MemoryGroup, find_groups

HOST_BYTES = 1000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A process in /job/rank of a cgroup v2 mount."""
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (mount / "job" / "rank").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/job/rank\n")
    (proc / "self" / "mountinfo").write_text(f"25 1 0:22 / {mount} rw - cgroup2 cgroup2 rw\n")
    for folder, limit, usage, cache in (("job", "500", 300, 100), ("job/rank", "max", 200, 50)):
        (mount / folder / "memory.max").write_text(f"{limit}\n")
        (mount / folder / "memory.current").write_text(f"{usage}\n")
        (mount / folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    return tmp_path


def test_the_tightest_limit_above_a_process_counts_and_page_cache_does_not(tree: Path) -> None:
    assert MemoryGroup(proc=str(tree / "proc")).read(HOST_BYTES) == Memory(200, 500)
    (tree / "cgroup/job/rank/memory.max").write_text("400\n")
    assert MemoryGroup(proc=str(tree / "proc")).read(HOST_BYTES) == Memory(150, 400)


def test_limits_may_change_and_one_above_the_hosts_memory_is_none(tree: Path) -> None:
    group = MemoryGroup(proc=str(tree / "proc"))
    (tree / "cgroup/job/memory.max").write_text("5000\n")
    assert group.read(HOST_BYTES) == Memory(150, None)


def test_a_group_outside_of_the_mount_has_no_folders(tree: Path) -> None:
    mount = tree / "cgroup"
    (tree / "proc/self/mountinfo").write_text(f"25 1 0:22 /other {mount} rw - cgroup2 cgroup2 rw\n")
    assert find_groups("self", str(tree / "proc")) == (2, [])
    assert MemoryGroup(proc=str(tree / "proc")).read(HOST_BYTES) is None


@pytest.mark.parametrize(
    ("cgroup", "mount"),
    [("0::/../other\n", "/ MOUNT rw - cgroup2"), ("0::/\n", "/ MOUNT rw - cgroup2"), ("", "/ /proc rw - proc")],
    ids=["of another container", "the root, which counts nothing", "no control groups"],
)
def test_a_process_without_a_counting_group_has_no_memory_of_one(tree: Path, cgroup: str, mount: str) -> None:
    (tree / "proc/self/cgroup").write_text(cgroup)
    (tree / "proc/self/mountinfo").write_text(f"25 1 0:22 {mount.replace('MOUNT', str(tree / 'cgroup'))} x rw\n")
    assert MemoryGroup(proc=str(tree / "proc")).read(HOST_BYTES) is None


def test_version_1_counts_where_it_has_the_memory_controller(tree: Path) -> None:
    mount = tree / "cgroup"
    (tree / "proc/self/cgroup").write_text("5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/docker/abc\n")
    (tree / "proc/self/mountinfo").write_text(
        f"35 31 0:32 /docker/abc {mount} rw - cgroup cgroup rw,memory\n36 31 0:33 / /x rw - cgroup2 cgroup2 rw\n"
    )
    (mount / "memory.limit_in_bytes").write_text("600\n")
    (mount / "memory.usage_in_bytes").write_text("350\n")
    (mount / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 50\n")
    assert MemoryGroup(proc=str(tree / "proc")).read(HOST_BYTES) == Memory(300, 600)
