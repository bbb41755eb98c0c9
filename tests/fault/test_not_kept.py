"""Promises that are not kept yet, each with a test that will show when it is. README.md in this folder says more."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import Node, end_process
from tests.support.oracle import ORACLE
from tests.support.waiting import wait_until

REFUSE_JOURNALS = """
import os
mkdir = os.mkdir
def refuse(path, *more, **others):
    if {journals!r} in str(path):
        raise OSError(28, "No space left on device")
    return mkdir(path, *more, **others)
os.mkdir = refuse
"""
PATIENCE_S = 5.0
N_ROWS = "SELECT count(*) AS n FROM metrics WHERE label = 'rank0'"
STATE = "SELECT state FROM labels WHERE label = 'rank0'"


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[bytes]"]]:
    ranks: list[subprocess.Popen[bytes]] = []
    yield ranks
    for rank in ranks:
        end_process(rank.pid)
        rank.wait()


def start_rank(root: Path, agent: str, file: Path, first: str = "") -> "subprocess.Popen[bytes]":
    """Start an oracle's rank that logs for minutes, and wait for nothing."""
    code = f"{first}\nimport runpy\nrunpy.run_path({ORACLE!r}, run_name='__main__')"
    options = ["--run-id", "oracle", "--label", "rank0", "--events", "1000000", "--pause-s", "0.005"]
    environment = {**os.environ, "CHIPLOG_DIR": str(root), "CHIPLOG_AGENT": agent}
    return subprocess.Popen([sys.executable, "-P", "-c", code, str(file), *options], env=environment)


def holds_within(wait_s: float, node: Node, query: str, wanted: object) -> bool:
    deadline = time.monotonic() + wait_s
    while node.try_sql(query) != [wanted]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.full
@pytest.mark.xfail(strict=True, reason="the identity of a producer was in the deleted log, and is sent once")
def test_a_rank_that_outlives_the_collectors_log_keeps_its_run_and_label(node: Node, started: list, tmp_path) -> None:
    started.append(start_rank(node.root, node.place.agent_address, tmp_path / "oracle"))
    node.until(N_ROWS, lambda rows: rows[0]["n"] > 50)
    node.stop_collector()
    shutil.rmtree(node.place.collector)
    node.start_collector()
    wait_until(lambda: node.try_sql("SELECT 1 AS one"), "a collector that answers")
    assert holds_within(PATIENCE_S, node, f"SELECT n > 0 AS come FROM ({N_ROWS})", {"come": True})


@pytest.mark.xfail(strict=True, reason="without a journal there is no lock that shows its end")
def test_the_label_of_a_killed_rank_without_any_journal_disk_does_not_run_for_ever(
    node: Node, started: list, tmp_path: Path
) -> None:
    journals = node.place.journals
    first = REFUSE_JOURNALS.format(journals=str(journals))
    started.append(start_rank(node.root, node.place.agent_address, tmp_path / "oracle", first))
    node.until(N_ROWS, lambda rows: rows[0]["n"] > 50)
    assert list(journals.iterdir()) == []
    started[0].kill()
    assert holds_within(PATIENCE_S, node, STATE, {"state": "crashed"})
