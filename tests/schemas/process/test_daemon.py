"""Daemons in the background: of many processes that miss one at the same time, one starts it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.daemon import has_collector, output_path, start_daemon, start_daemon_once
from chiplog_schemas.process.file_lock import Lock
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

MODULE = "this"  # prints a text of some lines, and ends
STARTER = """
import sys
from pathlib import Path
from chiplog_schemas.process.daemon import start_daemon_once
from chiplog_schemas.paths import paths_for_root
print("ready", flush=True)
sys.stdin.readline()
place = paths_for_root(Path(sys.argv[1]))
print(start_daemon_once("this", [], place, place.agent / "lock"))
"""
HOLDER = """
import sys
from pathlib import Path
from chiplog_schemas.process.file_lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""

FORKING = """
import os, signal, sys, threading, time
from pathlib import Path
from chiplog_schemas.process.daemon import start_daemon
from chiplog_schemas.paths import paths_for_root
place, started, workers = paths_for_root(Path(sys.argv[1])), threading.Event(), []
def start():
    for _ in range(10):
        start_daemon("this", [], place)
    started.set()
threading.Thread(target=start, daemon=True).start()
until = time.monotonic() + 100
while not started.wait(0.001 if len(workers) < 2000 else 1) and time.monotonic() < until:
    if len(workers) < 2000:
        workers.append(os.fork())
        if not workers[-1]:
            time.sleep(200)
            os._exit(0)
print(started.is_set(), flush=True)
for worker in workers:
    os.kill(worker, signal.SIGKILL)
os._exit(0)
"""


@pytest.fixture
def place(tmp_path: Path) -> Paths:
    return paths_for_root(tmp_path / "chiplog")


def starts(place: Paths) -> int:
    try:
        return output_path(place, MODULE).read_text().count("Beautiful is better than ugly.")
    except FileNotFoundError:
        return 0


def test_one_of_many_that_miss_a_daemon_starts_it(place: Paths) -> None:
    command = [sys.executable, "-c", STARTER, str(place.root)]
    pipe = subprocess.PIPE
    racers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(6)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    answers = [racer.communicate("go\n", timeout=WAIT_S)[0] for racer in racers]
    assert sorted(answers) == ["False\n"] * 5 + ["True\n"]
    wait_until(lambda: starts(place) == 1, "what the one prints")


@proves(
    "start-ignores-forked-workers",
    "the start of a daemon does not wait for a worker that is forked at the same time",
    value='__import__("subprocess").Popen(shell, executable="/bin/sh", env=environment).pid',
)
def test_workers_that_are_forked_meanwhile_do_not_hold_up_a_start(place: Paths) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, str(place.root)], capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_daemon_gets_no_descriptor_of_who_starts_it(place: Paths, tmp_path: Path) -> None:
    (tmp_path / "held").write_text("")
    held = os.open(tmp_path / "held", os.O_RDONLY)
    os.set_inheritable(held, True)
    look = f"import os; print(os.path.realpath('/proc/self/fd/{held}'))"
    try:
        start_daemon("timeit", ["-n", "1", "-r", "1", look], place)
    finally:
        os.close(held)
    printed = output_path(place, "timeit")
    wait_until(lambda: printed.exists() and "loop" in printed.read_text(), "what it sees")
    assert "/proc/" in printed.read_text()


def test_a_daemon_has_the_keys_of_a_relative_directory_of_its_starter(
    place: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHIPLOG_KEYS", "keys")
    start_daemon("timeit", ["-n", "1", "-r", "1", "import os; print(os.environ['CHIPLOG_KEYS'])"], place)
    printed = output_path(place, "timeit")
    wait_until(lambda: printed.exists() and "loop" in printed.read_text(), "what it sees")
    assert printed.read_text().startswith(f"{tmp_path}/keys\n")


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_a_daemon_prints_into_its_file_whatever_its_starter_has_closed(place: Paths, closed: list[int]) -> None:
    closes = "; ".join(f"os.close({number})" for number in closed)
    code = f"""
import os, sys
from pathlib import Path
from chiplog_schemas.process.daemon import start_daemon
from chiplog_schemas.paths import paths_for_root
place = paths_for_root(Path(sys.argv[1]))
{closes}
start_daemon("{MODULE}", [], place)
start_daemon("no_such_module", [], place)
"""
    subprocess.run([sys.executable, "-c", code, str(place.root)], timeout=WAIT_S, check=True)
    wait_until(lambda: starts(place) == 1, "what it prints")
    wait_until(lambda: "No module" in output_path(place, "no_such_module").read_text(), "what it has to complain of")


@pytest.mark.parametrize("stamp", ["", "garbage", "1.5", "long ago", "ahead"])
def test_an_old_or_senseless_stamp_keeps_nobody_from_starting(place: Paths, stamp: str) -> None:
    place.run.mkdir(parents=True)
    said = {"long ago": str(time.monotonic_ns() - 3600 * 10**9), "ahead": str(time.monotonic_ns() + 3600 * 10**9)}.get(
        stamp, stamp
    )
    (place.run / f"{MODULE}.started").write_text(said)
    lock = place.agent / "lock"
    assert start_daemon_once(MODULE, [], place, lock)
    assert not start_daemon_once(MODULE, [], place, lock)
    wait_until(lambda: starts(place) == 1, "what the one prints")


def test_a_daemon_that_came_up_and_was_killed_is_replaced_at_once(place: Paths) -> None:
    place.agent.mkdir(parents=True)
    lock = place.agent / "lock"
    Lock(lock).release()  # of an earlier daemon, which is no evidence about the new one
    assert start_daemon_once(MODULE, [], place, lock)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not start_daemon_once(MODULE, [], place, lock)
        holder.kill()
    assert start_daemon_once(MODULE, [], place, lock)
    wait_until(lambda: starts(place) == 2, "what both print")


def test_a_collector_is_one_that_is_named_or_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_collector({})
    monkeypatch.setattr("chiplog_schemas.process.daemon.COLLECTOR_MODULE", "chiplog_not_installed")
    assert not has_collector({"CHIPLOG_COLLECTOR": ""})
    assert has_collector({"CHIPLOG_COLLECTOR": "tcp://host:5555"})
