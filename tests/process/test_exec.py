"""A training that becomes another program by exec has ended its attempt: it has neither crashed nor an exit code."""

import subprocess
import sys

from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

TRAINING = """
import os, sys
import chiplog
first = int(sys.argv[1])
run = chiplog.init(run_id="r", label="main", resume="allow", capture_console=False)
for step in range(first, first + 10):
    run.log({"x": float(step)}, step=step)
if first == 0:
    os.execv(sys.executable, [sys.executable, "-u", __file__, "10", "--api-key", "hf_secret"])
print(run.is_primary, flush=True)
sys.stdin.readline()
run.finish()
"""


@proves(
    "exec-ends-attempt", "a process that lives and maps its journal no more has become another program", condition=True
)
def test_after_an_exec_both_attempts_are_whole_and_finished(node: Node, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    process = subprocess.Popen([sys.executable, script, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        node.until("SELECT 1 FROM labels WHERE attempt = 0 AND state <> 'running'")
        [row] = node.sql("SELECT state, exit_code, exit_signal, reason FROM labels WHERE attempt = 0")
        assert (row["state"], row["exit_code"], row["exit_signal"]) == ("finished", None, None)
        assert row["reason"] == f"its process became another program by exec: {sys.executable} {script}"
        assert process.poll() is None
    finally:
        printed, _ = process.communicate("\n", timeout=WAIT_S)
    assert (process.returncode, printed) == (0, "True\n")
    query = "SELECT attempt, step, value FROM metrics ORDER BY step"
    steps = node.until(query, lambda rows: len(rows) >= 20)
    node.until("SELECT 1 FROM labels WHERE attempt = 1 AND state = 'finished'")
    assert [(row["attempt"], row["step"], row["value"]) for row in steps] == [
        (step // 10, step, float(step)) for step in range(20)
    ]
    assert not node.sql("FROM first_failure")
