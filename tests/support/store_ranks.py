"""Ranks that log into a node whose collector has a store, and write what they logged into files of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until

# For `patch_daemons`: pieces are cut and published often.
OFTEN = """
import sys
if "chiplog_collector.index" in sys.orig_argv:
    from chiplog_collector.store import piece_cutter
    piece_cutter.PIECE_S = piece_cutter._AGAIN_S = 0.3
if "chiplog_collector.store" in sys.orig_argv:
    from chiplog_collector.store import publisher
    publisher._POLL_S, publisher._BACKOFF_MIN_S, publisher._BACKOFF_MAX_S = 0.1, 0.2, 1.0
    publisher._OUTAGE_S = publisher._RETIRED_LOOK_S = 0.0
"""
# Values as the oracle's rank; each tenth step a line, too.
RANK = """
import os, random, struct, sys, time, chiplog
file, run_id = sys.argv[1:]
chooser = random.Random(run_id)
target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with chiplog.init(run_id=run_id, project="p", label="rank0") as run:
    for step in range(1_000_000):
        value = chooser.random()
        run.log({"value": value, "other": 1.0}, step=step)
        os.write(target, f"{step} {struct.pack('<d', value).hex()}\\n".encode())
        if not step % 10:
            print(f"at {step}", flush=True)
            if os.path.exists(file + ".stop"):
                break
        time.sleep(0.002)
"""


@contextmanager
def rank_of(node: Node, file: Path, run_id: str) -> Iterator[None]:
    """Let a rank log while the block runs, then let it finish."""
    environment = os.environ | {"CHIPLOG_DIR": str(node.root), "CHIPLOG_AGENT": node.place.agent_address}
    command = [sys.executable, "-P", "-c", RANK, str(file), run_id]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as rank:
        try:
            yield
        finally:
            Path(f"{file}.stop").touch()
            assert rank.wait(WAIT_S) == 0


def log_some(node: Node, file: Path, run_id: str, n_bytes: int = 2_000) -> None:
    with rank_of(node, file, run_id):
        wait_until(lambda: file.exists() and file.stat().st_size > n_bytes, "a rank that logs")


def n_logged(*files: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)
