"""What the kernel reports about this machine and its processes, compared with other sources."""

import mmap
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from chiplog_schemas.process.procfs import (
    EXIT_CODE,
    FLAGS,
    GROUP,
    PARENT,
    SESSION,
    START,
    STATE,
    boot_id,
    is_mapped,
    maps_file,
    own_ticks,
    pid_namespace,
    program_of,
    read_proc_stat,
    resident_bytes,
    start_ticks,
    uptime_us,
)
from tests.support.waiting import wait_until

UNUSED_PID = 1 << 22  # PID_MAX_LIMIT of Linux: no process has it


def test_the_boot_has_an_id_that_stays() -> None:
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", boot_id())
    assert boot_id() == boot_id()


def test_the_start_of_a_process_is_that_which_psutil_reads() -> None:
    started_s = start_ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")
    assert abs(psutil.boot_time() + started_s - psutil.Process().create_time()) < 2
    assert start_ticks(UNUSED_PID) == 0


def test_the_fields_of_a_process_follow_its_name_whatever_that_is(tmp_path: Path) -> None:
    path = tmp_path / "a) S 1 (b"
    shutil.copy("/bin/sleep", path)
    with subprocess.Popen([path, "60"], start_new_session=True) as child:
        fields = read_proc_stat(child.pid)
        assert fields[STATE] in ("R", "S", "D")
        assert [int(fields[n]) for n in (PARENT, GROUP, SESSION)] == [os.getpid(), child.pid, child.pid]
        assert int(fields[START]) == start_ticks(child.pid) > 0
        assert int(fields[FLAGS]) > 0
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert read_proc_stat(child.pid)[STATE] == "Z"
        assert int(read_proc_stat(child.pid)[EXIT_CODE]) == 9
    assert read_proc_stat(UNUSED_PID) == []


def test_uptime_counts_on_and_includes_what_the_monotonic_clock_counts() -> None:
    before = uptime_us()
    assert time.monotonic_ns() // 1000 - 1_000_000 < before <= uptime_us()


def test_the_pid_namespace_is_that_of_this_process() -> None:
    assert os.readlink("/proc/self/ns/pid") == f"pid:[{pid_namespace()}]"


def test_a_file_is_mapped_while_a_process_maps_it_also_when_it_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(mmap.PAGESIZE))
    assert not is_mapped(str(path))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0):
        assert is_mapped(str(path))
        path.unlink()
        assert is_mapped(str(path))
    assert not is_mapped(str(path))


def test_a_process_maps_a_file_or_not_or_that_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    path.unlink()
    assert maps_file(os.getpid(), f"{tmp_path.name}/mapped") is True
    memory.close()
    assert maps_file(os.getpid(), f"{tmp_path.name}/mapped") is False
    assert maps_file(UNUSED_PID, "mapped") is None
    assert program_of(os.getpid()).split()[0] == Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
    assert program_of(UNUSED_PID) == ""


def test_resident_memory_and_cpu_time_are_those_that_other_files_have() -> None:
    command = [sys.executable, "-c", "sum(range(3_000_000)); print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        wait_until(lambda: read_proc_stat(child.pid)[STATE] == "S", "a child that waits")
        rollup = Path(f"/proc/{child.pid}/smaps_rollup").read_text().splitlines()
        [rss_kib] = [int(line.split()[1]) for line in rollup if line.startswith("Rss:")]
        assert abs(resident_bytes(child.pid) - rss_kib * 1024) <= 0.001 * resident_bytes(child.pid)
        times = psutil.Process(child.pid).cpu_times()
        assert own_ticks(read_proc_stat(child.pid)) == round((times.user + times.system) * os.sysconf("SC_CLK_TCK")) > 0
        child.communicate(b"\n")
    assert resident_bytes(UNUSED_PID) == 0
