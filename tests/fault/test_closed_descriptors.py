"""Code of the training closes all descriptors, as what turns a process into a daemon does, and opens files of its own.

Invariant: the training lives, its files are its own, and what it logs before and afterwards is stored once.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

CLOSES = """
import os, resource, sys, threading, time
import chiplog
run = chiplog.init(project="closes", run_id=sys.argv[1], label="rank0")
print("before", flush=True)
lock = run._journal._file_lock
inode = os.stat(lock.path).st_ino
number = 0
def log(count, pause_s=0.0):
    global number
    for _ in range(count):
        run.log({"value": float(number), "filler": 1.0}, step=number)
        number += 1
        time.sleep(pause_s)
log(500)
if sys.argv[2] == "connected":
    while not run._journal.acked:
        time.sleep(0.01)
beside = threading.Thread(target=lambda: [run.log({"beside": float(n)}, step=n) for n in range(30_000)])
beside.start()
time.sleep(0.05)
kept = []
for again in range(2):
    os.closerange(3, 65536)
    files = [open(os.path.join(sys.argv[3], f"{again}-{n}"), "w+b", buffering=0) for n in range(60)]
    kept.append(files)  # at its end a closed one would close the number that a later one has
    for file in files:
        file.write(b"of the training")
    log(2000, 0.0005)
beside.join()
deadline = time.monotonic() + 60.0
while not lock.is_ours:
    assert time.monotonic() < deadline, "the lock is acquired again"
    time.sleep(0.01)
assert os.stat(lock.path).st_ino == inode, "before an agent adopted the journal"
print("after", flush=True)
ended = sys.argv[4]
if ended == "finish":
    run.finish()
for file in files:
    file.seek(0)
    assert file.read() == b"of the training", file
    file.close()
print("lived", flush=True)
if ended == "kill":
    os.kill(os.getpid(), 9)
"""


@proves("no-zmq-without-keys", "a rank without keys has no descriptor of libzmq", value="zmq.Context()")
@proves(
    "closed-lock-acquired-again",
    "a lock that was released by closing its descriptor is acquired again",
    part="self.is_ours and",
)
@proves(
    "mapping-spares-foreign-descriptor",
    "a mapping closes no descriptor of the training",
    new="return mmap.mmap(descriptor, size)",
)
@proves(
    "console-spares-foreign-descriptors",
    "the console leaves the numbers of closed descriptors to the training",
    condition=True,
)
@pytest.mark.parametrize(
    ("when", "ended"),
    [
        pytest.param("connected", "finish", marks=pytest.mark.full),
        pytest.param("at once", "finish", marks=pytest.mark.full),
        ("connected", "kill"),
    ],
)
def test_a_training_that_closes_all_descriptors_lives_and_loses_nothing(
    node: Node, tmp_path: Path, when: str, ended: str
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-c", CLOSES, "closes", when, str(files), ended],
        env=os.environ | {"CHIPLOG_DIR": str(node.root)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == (-signal.SIGKILL if ended == "kill" else 0), done.stderr[-2000:]
    assert "lived" in done.stdout
    assert "failed inside" not in done.stderr
    state = "finished" if ended == "finish" else "crashed"
    node.until("SELECT state FROM labels", lambda rows: rows == [{"state": state}])
    (row,) = node.until(
        "SELECT * FROM completeness WHERE run_id = 'closes'", lambda rows: rows and rows[0]["pending"] == 0
    )
    assert row["lost"] == 0
    found = node.sql("SELECT key, count(*) AS n, count(DISTINCT step) AS steps FROM metrics GROUP BY ALL ORDER BY ALL")
    assert found == [
        {"key": "beside", "n": 30_000, "steps": 30_000},
        {"key": "filler", "n": 4500, "steps": 4500},
        {"key": "value", "n": 4500, "steps": 4500},
    ]
    node.until("SELECT line FROM console", lambda rows: {"before", "after"} <= {entry["line"] for entry in rows})
    assert len(node.sql("SELECT DISTINCT run_id, label, attempt FROM labels")) == 1
