"""A real job whose ranks end in different ways, as SQL and `chiplog show` report it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.node import Node
from tests.support.waiting import WAIT_S

# rank1 raises while the others wait for it: rank0 hangs in native code until the launcher sends SIGTERM, and rank2
# waits on the connection that breaks.
TRAIN = """
import os, sys, time
import torch.distributed as dist
import torch
import chiplog
run = chiplog.init(project="ends", capture_console=False)
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(5):
    run.log({"loss": float(step)})
dist.barrier()
time.sleep(0.7)
if rank == 1:
    raise ValueError("boom")
if rank == 0:
    time.sleep(600)
dist.recv(torch.zeros(1), src=1)
"""


def test_of_three_ranks_that_fail_the_one_that_raised_is_first_and_the_others_are_its_echoes(
    node: Node, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * WAIT_S)
    assert done.returncode == 1, done.stderr
    labels = "SELECT label, state, exit_code, exit_signal, reason FROM labels ORDER BY label"
    rows = node.until(labels, lambda rows: len(rows) == 3 and all(row["state"] != "running" for row in rows))
    assert (rows[0]["state"], rows[0]["exit_signal"]) == ("crashed", 15)
    assert (rows[1]["state"], rows[1]["exit_code"], rows[1]["reason"]) == ("failed", 1, "ValueError: boom")
    [first] = node.sql("SELECT * FROM first_failure")
    assert (first["label"], first["rank"], first["reason"]) == ("rank1", 1, "ValueError: boom")
    assert first["is_cause"] and first["is_certain"] and first["uncertainty_s"] == 0
    assert {other["label"]: other["is_echo"] for other in first["others"]} == {"rank0": True, "rank2": True}, first
    [trace] = node.sql("SELECT body->>'traceback' AS text FROM events WHERE kind = 'traceback' AND label = 'rank1'")
    assert 'raise ValueError("boom")' in trace["text"]
    shown = subprocess.run(
        [sys.executable, "-m", "chiplog.cli", "show", "latest", "--dir", str(node.root)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**environment, "COLUMNS": "200"},
    )
    line = next(line for line in shown.stdout.splitlines() if line.strip().startswith("verdict"))
    assert " rank1 failed first, " in line and "ValueError: boom; " in line and "are echoes." in line, line
