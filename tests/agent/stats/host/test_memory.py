"""The host's memory and page faults, beside pages that the test touches and a limit that does not concern the host."""

import mmap
import subprocess
import sys
from pathlib import Path

import psutil

from chiplog_agent.stats.host.memory import MemorySource
from tests.support.waiting import WAIT_S


def read() -> tuple[float, ...]:
    [(_, _, values)] = MemorySource().read()
    return values


def test_touched_pages_show_in_the_faults() -> None:
    before = read()[2]
    with mmap.mmap(-1, 1000 * mmap.PAGESIZE) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        for offset in range(0, len(memory), mmap.PAGESIZE):
            memory[offset] = 1
    assert read()[2] >= before + 1000


def test_memory_in_use_is_less_than_its_limit() -> None:
    usage, limit, _ = read()
    assert 0 < usage < limit <= psutil.virtual_memory().total


def test_memory_is_the_hosts_also_for_an_agent_in_a_limited_group(group: Path) -> None:
    """The process below is in a control group of its own with a limit, and reads the host's numbers."""
    code = (
        "import os, sys\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "from chiplog_agent.stats.host.memory import MemorySource\nprint(MemorySource().read()[0].values[1])"
    )
    command = [sys.executable, "-c", code, str(group / "cgroup.procs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert float(done.stdout) == psutil.virtual_memory().total, done.stderr
