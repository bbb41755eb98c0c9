"""Media arrive complete, whichever process is killed, and are exported and deleted with their run.

Real processes. A rank, a forked and a spawned child each log an image and a table that holds it; the rank then kills
itself. An export, an import, a rebuild, a backup and a deletion follow.
"""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_schemas.paths import paths_for_root
from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until

RANK = """
import multiprocessing, os, signal, sys
import chiplog

def log(number):
    run = chiplog.init(run_id="pictures", project="p", capture_console=False, label=f"label{number}")
    image = chiplog.Image([[number * 40] * 8] * 8, caption="one of all")
    table = chiplog.Table(columns=["n", "image"], data=[[number, image], [-1, None]])
    run.log({"image": image, "same": chiplog.Html("<p>equal</p>"), "table": table}, step=3)

if __name__ == "__main__":
    log(0)
    for number, method in ((1, "fork"), (2, "spawn")):
        child = multiprocessing.get_context(method).Process(target=log, args=(number,))
        child.start()
        child.join()
        assert child.exitcode == 0
    print("logged", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
LABELS = ["label0", "label1", "label2"]


def record(root: Path, tmp_path: Path, **variables: str) -> None:
    """Run the rank and its children; the rank kills itself after its last log()."""
    script = tmp_path / "train.py"
    script.write_text(RANK)
    environment = os.environ | {"CHIPLOG_DIR": str(root)} | variables
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, timeout=WAIT_S, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "logged\n"), done.stderr


def command(root: Path, *arguments: object) -> str:
    """Run a command of chiplog, and return what it says."""
    words = [sys.executable, "-m", "chiplog_cli", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "CHIPLOG_COLLECTOR"}
    done = subprocess.run(
        words, env=environment | {"CHIPLOG_DIR": str(root)}, timeout=WAIT_S, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def stored(root: Path) -> dict[str, bytes]:
    """Return the contents that a collector has, by their names."""
    return {path.name: path.read_bytes() for path in paths_for_root(root).files.glob("??/*")}


def media(node: Node, run: str = "pictures") -> list[dict[str, object]]:
    return node.sql(
        f"SELECT label, step, key, kind, bytes, sha256, is_stored FROM media WHERE run_id = '{run}' ORDER BY ALL"
    )


def check(node: Node, run: str = "pictures") -> None:
    """Compare all that was logged with what is stored."""
    node.until("SELECT is_stored FROM media", lambda rows: len(rows) == 12 and all(row["is_stored"] for row in rows))
    rows = media(node, run)
    assert [(row["label"], row["key"]) for row in rows] == [
        (label, key) for label in LABELS for key in ("image", "same", "table", "table/image")
    ]
    contents = stored(node.root)
    assert {(row["sha256"], row["bytes"]) for row in rows} == {(name, len(data)) for name, data in contents.items()}
    assert len(contents) == 7, "an image and a table of each process, and one image that all of them logged"
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in contents.items())
    table = node.sql(f"SELECT label, n, image FROM media_table('{run}', 'table', 3)")
    images = {row["label"]: f"sha256:{row['sha256']}" for row in rows if row["key"] == "image"}
    assert table == [
        {"label": label, "n": n, "image": image}
        for number, label in enumerate(LABELS)
        for n, image in ((number, images[label]), (-1, None))
    ]
    [counted] = node.sql("SELECT sum(lost) AS lost, sum(pending) AS pending, count(*) AS n FROM completeness")
    assert counted == {"lost": 0, "pending": 0, "n": 3}


def start_collector(node: Node) -> None:
    node.start_collector()
    wait_until(lambda: node.try_sql("SELECT 1"), "a collector that answers")


def rebuild(node: Node) -> None:
    """Rebuild the database from the log, with the collector stopped in the meantime."""
    node.stop_collector()
    command(node.root, "rebuild")
    start_collector(node)


@pytest.fixture
def other(tmp_path: Path) -> Node:
    return Node(tmp_path / "other")


@pytest.mark.timeout(900)
def test_media_of_a_killed_rank_and_its_children_arrive_move_and_go_with_their_run(
    bare_node: Node, other: Node, tmp_path: Path
) -> None:
    record(bare_node.root, tmp_path, CHIPLOG_AGENT=bare_node.place.agent_address)
    assert len(list(bare_node.place.outbox.iterdir())) == 7, "they wait for the agent"
    bare_node.start()
    check(bare_node)
    before, contents = media(bare_node), stored(bare_node.root)
    assert ", 7 files, " in command(bare_node.root, "export", "pictures", "-o", tmp_path / "export")
    command(bare_node.root, "backup", tmp_path / "backup")
    assert {path.name: path.read_bytes() for path in (tmp_path / "backup").glob("files/??/*")} == contents
    try:
        start_collector(other)
        assert ", 7 files, delivered" in command(other.root, "import", tmp_path / "export" / "pictures")
        check(other)
        assert (media(other), stored(other.root)) == (before, contents)
        rebuild(other)
        check(other)
        assert media(other) == before
        assert "deleted 1 run with 3 labels" in command(other.root, "rm", "pictures", "--yes")
        assert other.sql("SELECT count(*) AS n FROM media") == [{"n": 0}]
        assert stored(other.root) == contents, "another run may be about to name them"
        for path in other.place.files.glob("??/*"):
            os.utime(path, (0, 0))
        rebuild(other)
        wait_until(lambda: not any(other.place.files.glob("??/*")), "contents that are removed with the run")
    finally:
        other.stop()
    assert stored(bare_node.root) == contents
