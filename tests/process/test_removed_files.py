"""Files of living daemons and ranks that a cleaner removes come back; daemons whose directory is gone end."""

import os
import shutil
from pathlib import Path

import pytest

import chiplog
from chiplog.cli.root import main
from chiplog_schemas.locks import holder_of
from tests.conftest import WAIT_S, Node, wait_until
from tests.fault.switch_off import Safeguard

SAFEGUARDS = [
    Safeguard(
        "a receiver's or agent's socket that was removed is made again",
        "schemas/chiplog_schemas/router.py",
        old="            if file_id(ipc_path(address)) != before and not self.socket.closed:",
        new="            if False:",
        test="test_sockets_that_were_removed_come_back",
    ),
    Safeguard(
        "the socket for SQL that was removed is made again",
        "collector/chiplog_collector/query.py",
        old="        if self._file_id() == bound:",
        new="        if True:",
        test="test_sockets_that_were_removed_come_back",
    ),
    Safeguard(
        "a daemon's lock that was removed is made again",
        "schemas/chiplog_schemas/locks.py",
        old="    try:\n        lock.renew()\n",
        new="    try:\n        pass\n",
        test="test_locks_of_daemons_that_were_removed_come_back_and_down_finds_both",
    ),
    Safeguard(
        "a daemon whose directory is gone ends",
        "schemas/chiplog_schemas/locks.py",
        old="    if not lock.is_directory_there:",
        new="    if False:",
        test="test_daemons_end_when_their_directory_is_gone",
    ),
    Safeguard(
        "down waits for a daemon whose lock is just being made again",
        "sdk/chiplog/background.py",
        old="    if not pid_of(where, module) and _listens(socket_path(where, module)):",
        new="    if False:",
        test="test_locks_of_daemons_that_were_removed_come_back_and_down_finds_both",
    ),
]


def pids(node: Node) -> tuple[int, int]:
    assert node.agent is not None and node.collector is not None
    return node.agent.pid, node.collector.pid


def holders(node: Node) -> tuple[int, int]:
    return holder_of(node.place.agent / "lock"), holder_of(node.place.collector / "lock")


def log_one(node: Node, value: float) -> None:
    with chiplog.init(dir=node.root, agent=node.place.agent_address, capture_console=False) as run:
        run.log({"x": value})
    node.until(f"SELECT 1 FROM metrics WHERE value = {value}")


@pytest.mark.parametrize("removed", ["agent.sock", "collector.sock", "query.sock", "run"])
def test_sockets_that_were_removed_come_back(node: Node, removed: str) -> None:
    log_one(node, 1.0)
    if removed == "run":
        shutil.rmtree(node.place.run)
    else:
        (node.place.run / removed).unlink()
    for name in ("agent.sock", "collector.sock", "query.sock"):
        wait_until((node.place.run / name).exists, f"{name}, made again")
        assert (node.place.run / name).stat().st_mode & 0o077 == 0
    if removed in ("collector.sock", "run"):  # its agent is connected still: another one must find it
        node.stop_agent()
        node.start_agent()
    log_one(node, 2.0)
    assert holders(node) == pids(node)


def test_locks_of_daemons_that_were_removed_come_back_and_down_finds_both(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    for directory in (node.place.agent, node.place.collector):
        (directory / "lock").unlink()
    wait_until(lambda: holders(node) == pids(node), "locks that are held again")
    assert main(["up", "--dir", str(node.root)]) == 0
    said = capsys.readouterr().out
    assert all(f"runs already (process {pid})" in said for pid in pids(node)), said
    log_one(node, 1.0)
    for directory in (node.place.agent, node.place.collector):
        (directory / "lock").unlink()
    assert main(["down", "--dir", str(node.root)]) == 0
    said = capsys.readouterr().out
    assert all(f"stopped (process {pid})" in said for pid in pids(node)), said


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
def test_daemons_end_when_their_directory_is_gone(node: Node, how: str, tmp_path: Path) -> None:
    log_one(node, 1.0)
    assert node.agent is not None and node.collector is not None
    os.rename(node.root, tmp_path / "elsewhere")
    if how == "removed":
        shutil.rmtree(tmp_path / "elsewhere")
    if how == "replaced":
        for directory in (node.place.agent, node.place.collector):
            directory.mkdir(parents=True, mode=0o700)
    assert node.agent.wait(WAIT_S) == 0
    assert node.collector.wait(WAIT_S) == 0
    if how == "removed":
        return
    kept = Node(tmp_path / "elsewhere")
    assert "was removed or renamed" in kept.output("chiplog_agent")
    assert "was removed or renamed" in kept.output("chiplog_collector")
    kept.start()
    try:
        log_one(kept, 2.0)
        assert kept.sql("SELECT value FROM metrics ORDER BY value") == [{"value": 1.0}, {"value": 2.0}]
    finally:
        kept.stop()
