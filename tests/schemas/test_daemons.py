"""Daemons in the background: of many processes that miss one at the same time, one starts it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from chiplog_schemas.daemons import output_path, start_daemon_once
from chiplog_schemas.locks import Lock
from chiplog_schemas.places import Places, places
from tests.conftest import wait_until

MODULE = "this"  # prints a text of some lines, and ends
STARTER = """
import sys
from pathlib import Path
from chiplog_schemas.daemons import start_daemon_once
from chiplog_schemas.places import places
print("ready", flush=True)
sys.stdin.readline()
place = places(Path(sys.argv[1]))
print(start_daemon_once("this", [], place, place.agent / "lock"))
"""
HOLDER = """
import sys
from pathlib import Path
from chiplog_schemas.locks import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def place(tmp_path: Path) -> Places:
    return places(tmp_path / "chiplog")


def starts(place: Places) -> int:
    try:
        return output_path(place, MODULE).read_text().count("Beautiful is better than ugly.")
    except FileNotFoundError:
        return 0


def test_one_of_many_that_miss_a_daemon_starts_it(place: Places) -> None:
    command = [sys.executable, "-c", STARTER, str(place.root)]
    pipe = subprocess.PIPE
    racers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(6)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    answers = [racer.communicate("go\n", timeout=180)[0] for racer in racers]
    assert sorted(answers) == ["False\n"] * 5 + ["True\n"]
    wait_until(lambda: starts(place) == 1, "what the one prints")


@pytest.mark.parametrize("stamp", ["", "garbage", "1.5", "long ago", "ahead"])
def test_an_old_or_senseless_stamp_keeps_nobody_from_starting(place: Places, stamp: str) -> None:
    place.run.mkdir(parents=True)
    said = {"long ago": str(time.monotonic_ns() - 3600 * 10**9), "ahead": str(time.monotonic_ns() + 3600 * 10**9)}.get(
        stamp, stamp
    )
    (place.run / f"{MODULE}.started").write_text(said)
    lock = place.agent / "lock"
    assert start_daemon_once(MODULE, [], place, lock)
    assert not start_daemon_once(MODULE, [], place, lock)
    wait_until(lambda: starts(place) == 1, "what the one prints")


def test_a_daemon_that_came_up_and_was_killed_is_replaced_at_once(place: Places) -> None:
    place.agent.mkdir(parents=True)
    lock = place.agent / "lock"
    Lock(lock).release()  # of an earlier one, which says nothing of what is started now
    assert start_daemon_once(MODULE, [], place, lock)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not start_daemon_once(MODULE, [], place, lock)
        holder.kill()
    assert start_daemon_once(MODULE, [], place, lock)
    wait_until(lambda: starts(place) == 2, "what both print")
