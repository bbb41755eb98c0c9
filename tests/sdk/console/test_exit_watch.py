"""How a rank ended, written into its journal by the process that watches it."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog.console.exit_watch import ExitWatch
from chiplog_schemas.process.exit_status import STATUS_NAME, awaits_status, read_status
from tests.support.waiting import WAIT_S


@pytest.fixture
def rank() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input(); raise SystemExit(3)"], stdin=subprocess.PIPE) as rank:
        yield rank
        rank.kill()


@pytest.fixture
def watch(rank: "subprocess.Popen[bytes]", tmp_path: Path) -> Iterator[ExitWatch]:
    journal = tmp_path / "journal"
    journal.mkdir()
    pidfd = os.pidfd_open(rank.pid)
    with open(journal / STATUS_NAME, "wb") as status:
        yield ExitWatch(pidfd, status.fileno(), rank.pid, str(journal))
    os.close(pidfd)


def test_the_status_of_a_rank_is_in_its_journal_once_it_has_ended(watch, rank, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    waiting = threading.Thread(target=watch.wait, kwargs={"is_finished": False})
    waiting.start()
    assert awaits_status(journal)
    rank.communicate(b"\n")
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    found = read_status(journal)
    assert found is not None and os.waitstatus_to_exitcode(found[1]) == 3


def test_a_journal_that_was_removed_is_not_waited_for(watch, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "journal")
    watch.wait(is_finished=False)  # the rank is still running


def test_a_status_that_cannot_be_written_ends_the_wait_all_the_same(watch, rank) -> None:
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), watch._status)
    rank.communicate(b"\n")
    watch.wait(is_finished=False)
