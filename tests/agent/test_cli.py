"""The command `chiplog agent`: one per directory, and what it refuses, each in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid, lock_note
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

AGENT = [sys.executable, "-P", "-m", "chiplog_agent", "--no-stats"]


def test_exactly_one_agent_serves_a_directory_however_many_start(chiplog_dir) -> None:
    processes = [
        subprocess.Popen([*AGENT, "--dir", str(chiplog_dir)], stderr=subprocess.PIPE, text=True) for _ in range(6)
    ]
    try:
        wait_until(lambda: sum(process.poll() is None for process in processes) == 1, "five agents that leave")
        [alive] = [process for process in processes if process.poll() is None]
        wait_until(
            lambda: lock_holder_pid(paths_for_root(chiplog_dir).agent / "lock") == alive.pid, "the lock's holder"
        )
        for process in processes:
            if process is not alive:
                [line] = process.stderr.read().splitlines()
                assert process.returncode == 1
                assert f"is already served by process {alive.pid}" in line
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
            process.communicate()


@proves(
    "sample-interval-refused-early",
    "a sample interval that the sampler would ignore is refused at start",
    new="if seconds < SAMPLE_INTERVAL_MIN_S:",
)
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--collector", "nonsense"], "'nonsense'"),
        (["--collector", "tcp://host:99999"], "tcp://host:99999"),
        (["--bind", "tcp://0.0.0.0:7000"], "tcp://0.0.0.0:7000"),
        (["--spool-bytes-max", "5"], "5"),
        (["--sample-interval-s", "x"], "x"),
        (["--sample-interval-s", "7200"], "7200 s is outside of the limits; choose 0.1 to 3600 s"),
        (["--sample-interval-s", "nan"], "nan s is outside of the limits; choose 0.1 to 3600 s"),
        (["--no-such-flag"], "--no-such-flag"),
        (["surplus"], "surplus"),
    ],
)
def test_bad_flags_are_one_line_that_names_them_and_exit_code_2(tmp_path, flags, named) -> None:
    command = [*AGENT, "--dir", str(tmp_path / "c"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert named in line
    assert done.stdout == ""


def test_a_directory_that_cannot_be_used_is_one_line_and_exit_code_1(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run([*AGENT, "--dir", str(tmp_path / "file")], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert str(tmp_path / "file") in line


def test_a_bad_bound_stops_an_agent_that_a_user_starts_and_not_one_that_a_training_starts(
    chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIPLOG_SPOOL_BYTES_MAX", "much")
    command = [*AGENT, "--dir", str(chiplog_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "CHIPLOG_SPOOL_BYTES_MAX" in done.stderr
    place = paths_for_root(chiplog_dir)
    command += ["--embedded", "--collector", "tcp://127.0.0.1:9"]  # a named one: it starts none
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: lock_holder_pid(place.agent / "lock") == process.pid, "an agent that holds its lock")
        assert lock_note(place.agent / "lock") == "embedded"
        wait_until(Path(place.agent_address.removeprefix("ipc://")).exists, "the agent's socket")
        process.terminate()
        assert "CHIPLOG_SPOOL_BYTES_MAX" in process.communicate(timeout=WAIT_S)[1].splitlines()[0]
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_an_agent_writes_files_that_only_its_user_can_read(chiplog_dir: Path) -> None:
    before = os.umask(0)
    try:
        process = subprocess.Popen([*AGENT, "--dir", str(chiplog_dir)], stderr=subprocess.DEVNULL)
    finally:
        os.umask(before)
    place = paths_for_root(chiplog_dir)
    try:
        wait_until(Path(place.agent_address.removeprefix("ipc://")).exists, "the agent's socket")
        modes = {path: path.stat().st_mode & 0o077 for path in place.root.rglob("*")}
        assert modes
        assert not any(modes.values()), modes
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)
