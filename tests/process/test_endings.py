"""A real job whose ranks end in different ways, as SQL and `chiplog show` report it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from chiplog_client.client import connect
from chiplog_client.reads.run_verdict import read_verdict
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
        [sys.executable, "-m", "chiplog_cli", "show", "latest", "--dir", str(node.root)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**environment, "COLUMNS": "200"},
    )
    line = next(line for line in shown.stdout.splitlines() if line.strip().startswith("verdict"))
    assert " rank1 failed first, " in line and "ValueError: boom; " in line and "are echoes." in line, line


# Each step both wait for each other, as in a collective whose time-out is 1 s. rank1 is slow, and fails in step 20.
APART = """
import os, socket, sys, time
import chiplog
rank, peer = int(os.environ["RANK"]), socket.socket(fileno=int(sys.argv[1]))
run = chiplog.init(run_id="apart", capture_console=False)
peer.sendall(b"x")  # both begin at once: a process that starts late is no slow rank
peer.recv(1)
for step in range(21):
    with run.phase("data"):
        time.sleep(0.02 * rank)
        if step == 20 and rank == 1:
            raise ValueError("bad batch")
    with run.phase("compute"):
        try:
            peer.sendall(b"x")
            is_there = peer.recv(1)
        except OSError:
            is_there = False
        if not is_there:
            time.sleep(1)
            raise ConnectionError("peer lost")
    run.log({"loss": 1.0}, step=step)
"""


def test_the_time_in_which_a_rank_waits_for_one_that_failed_is_no_slowness(node: Node, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(APART)
    ends = socket.socketpair()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(end.fileno())],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
            pass_fds=[end.fileno()],
            stderr=subprocess.DEVNULL,
        )
        for rank, end in enumerate(ends)
    ]
    for end in ends:
        end.close()
    assert [rank.wait(WAIT_S) for rank in ranks] == [1, 1]
    ended = "SELECT state, pending FROM labels JOIN completeness USING (run_id, label, attempt)"
    node.until(ended, lambda rows: [(row["state"], row["pending"]) for row in rows] == [("failed", 0)] * 2)
    with connect(dir=node.root, start=False) as client:
        text = read_verdict(client, "apart")["text"]
    assert text.startswith("rank1 failed first, after step 19, "), text
    assert " Until then rank1 cost " in text and ": its data phase took " in text, text
