"""Files of /proc that stay open return what opening them again would, and are closed once they are not read."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.rank import kept_files, process_tree
from chiplog_agent.stats.rank.kept_files import KeptFiles
from tests.support.safeguard import proves


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def held(*paths: str) -> list[str]:
    """Return which of the paths this process has open."""
    there = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return [path for path in paths if path in there]


def test_a_kept_file_tells_what_is_true_now_and_nothing_once_its_process_has_ended(
    process: "subprocess.Popen[bytes]",
) -> None:
    files, path = KeptFiles(), f"/proc/{process.pid}/stat"
    assert files.read(path).startswith(b"%d " % process.pid)
    files.sweep()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert files.read(path).rpartition(b")")[2].split()[0] == b"Z", "read again, not remembered"
    process.wait()
    assert files.read(path) == b""
    assert held(path) == []
    assert files.read(path) == b"", "nor can it be opened"


def test_a_file_is_read_to_its_end_although_the_kernel_returns_one_page_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the children of a process with 700 of them."""
    content, pread = b"".join(b"%d " % pid for pid in range(1000, 3000)), os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: pread(descriptor, min(size, 4092), offset))
    (tmp_path / "children").write_bytes(content)
    assert KeptFiles().read(str(tmp_path / "children")) == content
    assert process_tree._read(str(tmp_path / "children")) == content


@proves("unread-files-closed", "a file that is not read any more costs no descriptor")
def test_what_was_not_read_between_two_sweeps_is_closed(process: "subprocess.Popen[bytes]") -> None:
    files, stat, memory = KeptFiles(), f"/proc/{process.pid}/stat", f"/proc/{process.pid}/statm"
    for path in (stat, memory, stat):
        assert files.read(path)
    files.sweep()
    assert files.read(stat)
    files.sweep()
    assert held(stat, memory) == [stat]
    del files
    assert held(stat, memory) == []


@proves("kept-files-bounded", "descriptors for processes are bounded", new="self._fresh[path] = descriptor")
def test_beyond_the_bound_files_are_read_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "_KEPT_MAX", 2)
    files, paths = KeptFiles(), [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).write_bytes(path.encode())
    for _ in range(2):
        assert [files.read(path) for path in paths] == list(map(str.encode, paths))
        files.sweep()
        assert held(*paths) == paths[:2]
