"""End to end: scripts as users write them, daemons that start on demand, and the resulting rows in SQL."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until

PLAIN = """
import sys
import chiplog
number = int(sys.argv[1])
run = chiplog.init(project="race", run_id="r", label=f"p{number}", primary=number == 0, config={"lr": 0.1})
for step in range(200):
    run.log({"x": float(step), "y": step * 0.5}, step=step)
print("hello from", number)
run.finish()
"""

LATE_IMPORT = """
import sys
import chiplog
from chiplog.journal import sender
sys.setswitchinterval(1e-4)
run = chiplog.init(mode="offline", capture_console=False)
import threading
done = threading.Event()
def look():
    while not done.is_set(): run._membership.poll()
thread = threading.Thread(target=look)
thread.start()
import torch.distributed
done.set()
thread.join()
run.log({"x": 1.0})
run.finish()
print("done")
"""


@pytest.fixture
def script(tmp_path: Path):
    """Return what writes a script into a file."""

    def write(text: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


def daemons_of(root: Path, module: str) -> list[int]:
    """Return the PIDs of a module's processes that serve a directory: by /proc, independent of chiplog's locks."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended during the scan
        if module.encode() in arguments and f"CHIPLOG_DIR={root}".encode() in environment:
            found.append(int(entry.name))
    return found


def run_to_end(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "chiplog:" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_eight_processes_that_race_from_nothing_get_one_agent_one_collector_and_every_event_once(
    chiplog_dir: Path, script
) -> None:
    path = script(PLAIN)
    processes = [
        subprocess.Popen([sys.executable, path, str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(8)
    ]
    for process in processes:
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err
        assert err == ""
        assert out.startswith("hello from")
    node = Node(chiplog_dir)
    query = "SELECT count(*) AS n FROM labels l JOIN completeness c USING (run_id, label, attempt) WHERE pending = 0"
    node.until(f"{query} AND l.state = 'finished'", lambda rows: rows[0]["n"] == 8)
    for module in ("chiplog_agent", "chiplog_collector"):
        wait_until(lambda module=module: len(daemons_of(chiplog_dir, module)) == 1, f"one {module}")
    place = paths_for_root(chiplog_dir)
    assert daemons_of(chiplog_dir, "chiplog_agent") == [lock_holder_pid(place.agent / "lock")]
    assert daemons_of(chiplog_dir, "chiplog_collector") == [lock_holder_pid(place.collector / "lock")]
    rows = node.sql(
        "SELECT label, key, count(*) AS n, count(DISTINCT step) AS d, sum(value) AS s FROM metrics GROUP BY ALL"
    )
    assert {(row["label"], row["key"]) for row in rows} == {(f"p{n}", key) for n in range(8) for key in "xy"}
    assert {(row["key"], row["n"], row["d"], row["s"]) for row in rows} == {
        ("x", 200, 200, 19900),
        ("y", 200, 200, 9950),
    }
    lines = node.until("SELECT label, line FROM console", lambda rows: len(rows) >= 8)
    assert {(row["label"], row["line"]) for row in lines} == {(f"p{n}", f"hello from {n}") for n in range(8)}
    assert len(lines) == 8
    assert node.sql("SELECT run_id, project, state, primary_label, n_labels, n_attempts FROM runs") == [
        {
            "run_id": "r",
            "project": "race",
            "state": "finished",
            "primary_label": "p0",
            "n_labels": 8,
            "n_attempts": 1,
        }
    ]
    assert node.sql("SELECT key, value, label FROM config") == [{"key": "lr", "value": "0.1", "label": "p0"}]
    assert node.sql("SELECT count(*) AS n FROM completeness WHERE lost <> 0 OR produced <> stored") == [{"n": 0}]
    wait_until(lambda: not os.listdir(place.journals), "journals that are removed")


@pytest.mark.full
def test_torch_may_be_imported_while_the_sender_looks_for_its_process_group(chiplog_dir: Path, script) -> None:
    assert run_to_end([sys.executable, script(LATE_IMPORT)]) == "done\n"
