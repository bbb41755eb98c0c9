"""A process writes down that it ended well only where a worker asked, and a name is that of one process."""

import os
import subprocess
import sys
import time
from pathlib import Path

from chiplog_schemas.process.pool_owners import announce, ended_well, is_alive, name_of, note_good_end, remove_old


def test_a_good_end_is_noted_only_where_a_worker_asked(tmp_path: Path) -> None:
    owners, me = tmp_path / "owners", name_of(os.getpid())
    note_good_end(owners)
    assert not owners.exists()
    announce(owners, me)
    assert not ended_well(owners, me)
    note_good_end(owners)
    assert ended_well(owners, me)
    announce(owners, me)
    assert ended_well(owners, me), "a late worker changes nothing"


def test_a_name_is_that_of_one_process_and_hostile_ones_are_nobodys(tmp_path: Path) -> None:
    me = name_of(os.getpid())
    assert is_alive(me)
    assert not is_alive(f"{me}1"), "another one with this PID"
    for name in ("", ":", "1", "x:y", "../../etc/passwd", "1:" + "9" * 5_000, f"{1 << 70}:1"):
        assert not is_alive(name)
        assert not ended_well(tmp_path, name)
    assert name_of((1 << 31) - 1) == ""


def test_only_files_of_processes_that_ended_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    gone, me = name_of(ended.pid), name_of(os.getpid())
    for name in (gone, me):
        announce(tmp_path, name)
    ended.communicate(b"\n")
    remove_old(tmp_path, time.time() - 60)
    assert {path.name for path in tmp_path.iterdir()} == {gone, me}
    remove_old(tmp_path, time.time() + 60)
    assert {path.name for path in tmp_path.iterdir()} == {me}
