"""Files of living daemons and ranks that a cleaner removes come back; daemons whose directory is gone end."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog_agent.ranks.orphan_journals import OrphanJournalCollector
from chiplog_cli.root import main
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.storage.journal_dir import LOCK_NAME, list_journals
from tests.support.marks import everyday
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.tools import needs
from tests.support.waiting import WAIT_S, wait_until

TRAINING = """
import sys, chiplog
run = chiplog.init(run_id="r", label="rank0", capture_console=False)
for line in sys.stdin:
    command, _, argument = line.strip().partition(" ")
    if command == "finish":
        run.finish()
    else:
        for step in range(int(argument)):
            run.log({"x": float(step), "pad": "p" * 400} if command == "pad" else {"x": float(step)})
    print("done", flush=True)
"""


def pids(node: Node) -> tuple[int, int]:
    assert node.agent is not None and node.collector is not None
    return node.agent.pid, node.collector.pid


def holders(node: Node) -> tuple[int, int]:
    return lock_holder_pid(node.place.agent / "lock"), lock_holder_pid(node.place.collector / "lock")


def log_one(node: Node, value: float) -> None:
    with chiplog.init(dir=node.root, agent=node.place.agent_address, capture_console=False) as run:
        run.log({"x": value})
    node.until(f"SELECT 1 FROM metrics WHERE value = {value}")


@proves("removed-socket-made-again", "a receiver's or agent's socket that was removed is made again", condition=False)
@proves("removed-sql-socket-made-again", "the socket for SQL that was removed is made again", condition=True)
@pytest.mark.parametrize("removed", everyday(1, ["run", "collector.sock", "agent.sock", "query.sock"]))
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


@proves("removed-lock-made-again", "a daemon's lock that was removed is made again")
@proves("down-waits-for-lock", "down waits for a daemon whose lock is just being made again", condition=False)
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


@proves("daemon-ends-without-directory", "a daemon whose directory is gone ends", condition=False)
@pytest.mark.parametrize("how", everyday(1, ["removed", "renamed", "replaced"]))
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


# -- ranks --


class Training:
    """A rank that runs commands of the test."""

    def __init__(self, root: Path) -> None:
        environ = os.environ | {"CHIPLOG_DIR": str(root), "CHIPLOG_AGENT": f"ipc://{root}/run/agent.sock"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )

    def do(self, command: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def training(bare_node: Node) -> Iterator[Training]:
    bare_node.place.journals.mkdir(parents=True, mode=0o700)
    bare_node.root.chmod(0o700)
    training = Training(bare_node.root)
    yield training
    training.end()


def remove(path: Path, scratch: Path) -> None:
    """Remove a directory at once: a rank may make a file in it at any moment."""
    os.rename(path, scratch / "removed")
    shutil.rmtree(scratch / "removed")


def journal_of(node: Node) -> Path:
    [(_, directory)] = wait_until(lambda: list_journals(node.place.journals), "a journal")
    return Path(directory)


def lock_is_back(node: Node, training: Training) -> bool:
    found = list_journals(node.place.journals)
    return bool(found) and lock_holder_pid(found[0][1] / LOCK_NAME) == training.process.pid


def stored(node: Node, count: int) -> None:
    node.until("SELECT count(*) AS n FROM metrics WHERE key = 'x'", lambda rows: rows[0]["n"] == count)
    node.until("SELECT state FROM labels", lambda rows: rows == [{"state": "crashed"}])
    [row] = node.until("SELECT produced, stored, lost, pending FROM completeness", lambda rows: rows[0]["pending"] == 0)
    assert (row["lost"], row["produced"]) == (0, row["stored"])


@proves("rank-makes-lock-again", "a live rank makes its lock again")
def test_a_rank_whose_lock_was_removed_is_adopted_when_it_dies(bare_node: Node, training: Training) -> None:
    training.do("log 100")
    (journal_of(bare_node) / LOCK_NAME).unlink()
    wait_until(lambda: lock_is_back(bare_node, training), "the lock, made again")
    training.do("log 100")
    training.end()
    bare_node.start()
    stored(bare_node, 200)


@proves("dead-rank-without-lock-adopted", "a dead rank without a lock's file is adopted", new="return False")
def test_a_rank_that_dies_before_it_could_make_its_lock_again_is_adopted(bare_node: Node, training: Training) -> None:
    training.do("log 100")
    bare_node.start()
    bare_node.until("SELECT 1 FROM metrics WHERE value = 99.0")
    training.process.send_signal(signal.SIGSTOP)
    (journal_of(bare_node) / LOCK_NAME).unlink()
    training.end()
    stored(bare_node, 100)


@proves(
    "live-rank-without-lock-kept",
    "a live rank without a lock's file is not adopted",
    value="not self._exit_causes.is_alive(producer)",
)
def test_a_stopped_rank_without_a_locks_file_is_not_adopted(
    bare_node: Node, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an agent that has just started, and has never seen it alive."""
    monkeypatch.setattr("chiplog_agent.ranks.orphan_journals._LOCKLESS_S", 0.0)
    training.do("log 10")
    directory = journal_of(bare_node)
    training.process.send_signal(signal.SIGSTOP)
    (directory / LOCK_NAME).unlink()
    adoption = OrphanJournalCollector(bare_node.place.journals)
    for _ in range(3):
        assert adoption.scan({}) == []
        assert not adoption.is_idle
    training.process.send_signal(signal.SIGCONT)
    wait_until(lambda: lock_is_back(bare_node, training), "the lock, made again")
    training.process.send_signal(signal.SIGSTOP)
    (directory / LOCK_NAME).unlink()
    training.end()
    wait_until(lambda: len(adoption.scan({})) == 1, "the adoption of the journal")


@proves("cleaner-leaves-journal", "systemd-tmpfiles leaves the files of a journal", part="0o1600", new="0o600")
@needs("systemd-tmpfiles")
def test_a_cleaner_leaves_the_files_of_a_live_rank_however_old_they_are(
    bare_node: Node, training: Training, tmp_path: Path
) -> None:
    training.do("pad 5000")
    directory = journal_of(bare_node)
    plain = directory.parent / "plain"
    plain.touch()
    for path in (plain, *directory.iterdir()):
        os.utime(path, (0, 0))
    rule = tmp_path / "chiplog.conf"
    rule.write_text(f"d {bare_node.place.journals} - - - 0\n")
    subprocess.run(["systemd-tmpfiles", "--clean", str(rule)], check=True, timeout=WAIT_S)
    assert not plain.exists()
    wait_until(lambda: lock_is_back(bare_node, training), "the lock, made again")
    training.end()
    bare_node.start()
    stored(bare_node, 5000)


@proves("removed-segment-declared-lost", "what was removed is declared lost", new="return None")
def test_full_segments_that_are_removed_are_declared_lost(bare_node: Node, training: Training, tmp_path: Path) -> None:
    training.do("pad 5000")  # more than two segments
    remove(bare_node.place.journals, tmp_path)
    bare_node.start()
    training.do("log 10")
    training.do("finish")
    [row] = bare_node.until(
        "SELECT produced, stored, lost, pending, reasons FROM completeness", lambda rows: rows[0]["pending"] == 0
    )
    assert row["lost"] > 1000 and row["stored"] > 10
    assert row["produced"] == row["stored"] + row["lost"]
    assert "removed before it was sent" in str(row["reasons"])
