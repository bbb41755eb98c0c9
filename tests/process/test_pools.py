"""Workers that their pool terminates, as in a script that never closes it, are as good as its owner's end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_agent.ranks.exit_cause import DISMISSED, VANISHED
from tests.support.marks import everyday
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

POOL = """
import glob, multiprocessing as mp, time
import chiplog

def work(n):
    run = chiplog.init(config={"n": n}, capture_console=False)
    run.log({"x": float(n)})

def dwell(n):
    work(n)
    open(f"{__file__}.dwells{n}", "w").close()
    time.sleep(600)

def wait_for(n_workers):
    while len(glob.glob(f"{__file__}.dwells*")) < n_workers: time.sleep(0.05)

def main():
    chiplog.setup()
    {main}

if __name__ == "__main__":
    main()
"""
MAINS = {
    "never closed": "pool = mp.Pool(2); pool.map(work, range(4))",
    "with": "with mp.Pool(2) as pool: pool.map(work, range(4))",
    "in the middle": "pool = mp.Pool(2); pool.map_async(dwell, range(2)); wait_for(2); pool.terminate(); pool.join()",
    "raises": "pool = mp.Pool(2); pool.map_async(dwell, range(2)); wait_for(2); 1 / 0",
    "lives on": "pool = mp.Pool(2); pool.map_async(dwell, range(2)); wait_for(2); pool.terminate(); time.sleep(12)",
}


@proves("pool-worker-ends-well", "a worker that its pool terminated is finished when the owner ended well")
@pytest.mark.parametrize("main", everyday(1, MAINS))
def test_workers_of_a_pool_that_was_terminated_end_as_their_owner_did(
    chiplog_dir: Path, tmp_path: Path, main: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(POOL.replace("{main}", MAINS[main]))
    done = subprocess.run([sys.executable, str(script)], env=os.environ, capture_output=True, text=True, timeout=WAIT_S)
    is_good = main != "raises"
    assert (done.returncode == 0) is is_good, done.stderr
    query = "SELECT DISTINCT state FROM labels"
    wanted = [{"state": "finished" if is_good else "crashed"}]
    node = Node(chiplog_dir)
    node.until(query, lambda rows: rows == wanted)
    reasons = node.sql("SELECT DISTINCT reason FROM labels WHERE reason IS NOT NULL")
    assert {row["reason"] for row in reasons} <= ({DISMISSED} if is_good else {"killed by SIGTERM", VANISHED}), reasons
    if main != "lives on":
        assert bool(node.sql("SELECT 1 FROM events WHERE kind = 'crashed'")) is not is_good
