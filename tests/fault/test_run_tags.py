"""Tags of two labels of a killed job are what was set last, also in a rebuilt, restored or imported database."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node import Node, end_daemons
from tests.support.waiting import WAIT_S, wait_until

RANKS = """
import os, signal
import chiplog

run = chiplog.init(run_id="tagged", capture_console=False, label="driver")
run._set_tag("stage", "draft")
run._set_tag("owner", "driver")
run._set_tag("tmp", "x")
if not (child := os.fork()):
    run = chiplog.init(run_id="tagged", capture_console=False, label="worker", primary=False)
    run._set_tag("stage", "reviewed ü")
    run._set_tag("tmp", None)
    run._set_tag("mlflow.note.content", "two\\nlines")
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
run._set_tag("owner", "driver again")
print("tagged", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
EXPECTED = [
    ("mlflow.note.content", "two\nlines", "worker"),
    ("owner", "driver again", "driver"),
    ("stage", "reviewed ü", "worker"),
]


def command(root: Path, *arguments: object) -> None:
    words = [sys.executable, "-m", "chiplog_cli", *map(str, arguments)]
    environment = os.environ | {"CHIPLOG_DIR": str(root)}
    done = subprocess.run(words, env=environment, timeout=WAIT_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def tags(node: Node, run: str = "tagged") -> list[dict[str, object]]:
    return node.sql(f"SELECT key, value, label, ts FROM run_tags WHERE run_id = '{run}' ORDER BY key")


def start_collector(node: Node) -> None:
    node.start_collector()
    wait_until(lambda: node.try_sql("SELECT 1"), "a collector that answers")


@pytest.mark.timeout(900)
def test_the_last_tags_of_killed_labels_survive_a_rebuild_a_backup_and_a_move(bare_node: Node, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    environment = os.environ | {"CHIPLOG_DIR": str(bare_node.root), "CHIPLOG_AGENT": bare_node.place.agent_address}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, timeout=WAIT_S, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "tagged\n"), done.stderr
    bare_node.start()
    bare_node.until("SELECT state FROM labels", lambda rows: [row["state"] for row in rows] == ["crashed"] * 2)
    bare_node.until("SELECT pending FROM completeness", lambda rows: all(row["pending"] == 0 for row in rows))
    before = tags(bare_node)
    assert [(row["key"], row["value"], row["label"]) for row in before] == EXPECTED

    command(bare_node.root, "export", "tagged", "-o", tmp_path / "export")
    command(bare_node.root, "backup", tmp_path / "backup")
    bare_node.stop_collector()
    command(bare_node.root, "rebuild")
    start_collector(bare_node)
    assert tags(bare_node) == before
    command(bare_node.root, "rm", "tagged", "--yes")
    assert tags(bare_node) == []
    command(bare_node.root, "import", tmp_path / "export" / "tagged", "--as", "moved")
    bare_node.until("SELECT run_id FROM runs WHERE run_id = 'moved'")
    assert tags(bare_node, "moved") == before

    restored = Node(tmp_path / "restored")
    command(restored.root, "restore", tmp_path / "backup")
    try:
        start_collector(restored)
        assert tags(restored) == before
    finally:
        restored.stop()
        end_daemons(restored.place)
