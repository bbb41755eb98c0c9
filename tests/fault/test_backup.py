"""A backup of a collector that receives, and that is killed in between, holds all that SQL had shown before.

Real processes: a rank logs all the time, the commands run as users run them. The oracle is the value of each step,
which follows from its number.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from chiplog_client.client import connect
from tests.support.command_line import CLI
from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until

RANK = """
import sys, time, chiplog
with chiplog.init(run_id="kept", project="p", label="rank0", capture_console=False) as run:
    run.save(sys.argv[0])
    for step in range(1_000_000):
        run.log({"value": step * 0.5}, step=step)
        time.sleep(0.001)
        if not step % 100 and open("stop").read():
            break
"""
STEPS = "SELECT step, value FROM metrics WHERE run_id = 'kept' ORDER BY step"


def command(*arguments: object) -> str:
    done = subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def restored(backup: Path, root: Path) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Restore a backup; return its steps, and its labels and files."""
    command("restore", backup, "--dir", root)
    with connect(dir=root, start=False) as client:
        rest = client.sql("SELECT label, attempt, is_primary FROM labels UNION ALL SELECT path, bytes, true FROM files")
        return client.sql(STEPS).tuples(), sorted(rest.tuples())


def test_a_backup_beside_ranks_and_a_kill_has_all_that_sql_had_shown(bare_node: Node, tmp_path: Path) -> None:
    node = bare_node.start()
    (tmp_path / "stop").touch()
    (tmp_path / "train.py").write_text(RANK)
    environment = os.environ | {"CHIPLOG_DIR": str(node.root), "CHIPLOG_AGENT": node.place.agent_address}
    with subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL
    ) as rank:
        try:
            node.until("SELECT 1 FROM events WHERE kind = 'file_stored'")
            first = node.until(STEPS, lambda rows: len(rows) > 300)
            command("backup", tmp_path / "backup", "--from", node.root)
            after_first, rest = restored(tmp_path / "backup", tmp_path / "first")

            assert node.collector is not None
            node.collector.kill()
            node.collector.wait()
            command("backup", tmp_path / "backup", "--from", node.root)  # without a collector
            node.start_collector()
            second = node.until(STEPS, lambda rows: len(rows) > len(after_first) + 300)
            command("backup", tmp_path / "backup", "--from", node.root)
        finally:
            (tmp_path / "stop").write_text("now")
            wait_until(lambda: rank.poll() is not None, "a rank that ends")
    after_second, _ = restored(tmp_path / "backup", tmp_path / "second")

    for shown, kept in ((first, after_first), (second, after_second)):
        assert kept == [(step, step * 0.5) for step in range(len(kept))]
        assert len(kept) >= len(shown)
    assert rest == [("rank0", 0, True), ("train.py", len(RANK), True)]
    [content] = (path for path in (tmp_path / "second" / "collector" / "files").rglob("*") if path.is_file())
    assert content.read_text() == RANK
