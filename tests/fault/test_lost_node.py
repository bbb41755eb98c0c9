"""A node that is gone with its disk, and one that only was out of reach: real daemons and ranks, real silence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.node import Node, end_process
from tests.support.oracle import ORACLE
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.timeout(900)


def start_rank(node: Node, label: str, file: Path) -> "subprocess.Popen[bytes]":
    options = ["--run-id", "oracle", "--label", label, "--events", "1000000", "--pause-s", "0.05"]
    environment = {**os.environ, "CHIPLOG_DIR": str(node.root), "CHIPLOG_AGENT": node.place.agent_address}
    return subprocess.Popen([sys.executable, "-P", ORACLE, str(file), *options], env=environment)


def until(centre: Node, query: str, wanted: object) -> float:
    """Return when the rows first matched."""
    deadline = time.monotonic() + float(os.environ.get("CHIPLOG_LOST_NODE_WAIT_S", WAIT_S))
    while (rows := centre.try_sql(query)) != wanted:
        assert time.monotonic() < deadline, rows
        time.sleep(0.05)
    return time.monotonic()


@proves(
    "lost-node-crashes-labels",
    "a lost node's labels do not run forever",
    value="()",
    environment={"CHIPLOG_LOST_NODE_WAIT_S": "30"},
)
@proves(
    "reconnected-label-runs",
    "an agent that reconnects is no longer lost",
    new="producer.reason = None",
    environment={"CHIPLOG_LOST_NODE_WAIT_S": "30"},
)
@pytest.mark.promise(6)
def test_a_lost_nodes_labels_crash_and_those_of_one_out_of_reach_run_on_when_it_is_back(tmp_path: Path) -> None:
    centre, gone, stopped = (Node(tmp_path / name) for name in ("centre", "gone", "stopped"))
    ranks = []
    try:
        centre.start_collector()
        for node in (gone, stopped):
            node.start_agent("--collector", centre.place.collector_address)
            ranks.append(start_rank(node, node.root.name, tmp_path / f"{node.root.name}.oracle"))
        states = "SELECT label, state FROM labels ORDER BY label"
        running = {"gone": "running", "stopped": "running"}

        def rows(**states: str) -> list[dict[str, str]]:
            return [{"label": label, "state": state} for label, state in sorted((running | states).items())]

        until(centre, states, rows())
        n_logged = "SELECT min(n) > 20 AS some FROM (SELECT count(*) AS n FROM metrics GROUP BY label)"
        until(centre, n_logged, [{"some": True}])
        assert stopped.agent is not None
        begun = time.monotonic()
        os.kill(stopped.agent.pid, signal.SIGSTOP)
        ranks[0].kill()
        gone.kill_agent()
        shutil.rmtree(gone.root)
        took_s = until(centre, states, rows(gone="crashed", stopped="crashed")) - begun
        print(f"both were seen to be lost after {took_s:.1f} s; promised 15 s")
        unknown = "SELECT produced, pending, stored > 0 AS kept, reasons LIKE 'unknown: %' AS told FROM completeness"
        assert centre.sql(unknown) == [{"produced": None, "pending": None, "kept": True, "told": True}] * 2
        listed = [sys.executable, "-m", "chiplog_cli", "runs", "--format", "json", "--dir", str(centre.root)]
        [run] = json.loads(subprocess.run(listed, capture_output=True, check=True, timeout=WAIT_S).stdout)
        assert (run["complete"], run["pending"]) == (False, None)
        assert centre.sql("SELECT n_failed, n_running FROM runs") == [{"n_failed": 2, "n_running": 0}]
        [told] = centre.sql("SELECT reason FROM labels WHERE label = 'gone'")
        assert told["reason"].endswith(" s") and "is lost: its agent sent nothing for 1" in told["reason"]
        os.kill(stopped.agent.pid, signal.SIGCONT)
        until(centre, states, rows(gone="crashed"))
        assert centre.sql("SELECT n_failed, n_running FROM runs") == [{"n_failed": 1, "n_running": 1}]
        known = "SELECT produced = stored + lost + pending AS adds_up FROM completeness ORDER BY label"
        assert centre.sql(known) == [{"adds_up": None}, {"adds_up": True}]
        kinds = centre.sql("SELECT kind FROM events WHERE kind LIKE 'node_%' ORDER BY ts, kind")
        assert [row["kind"] for row in kinds] == ["node_lost", "node_lost", "node_back"]
        assert ranks[1].poll() is None
        ranks[1].kill()
        until(
            centre,
            "SELECT state, exit_signal, reason FROM labels WHERE label = 'stopped'",
            [{"state": "crashed", "exit_signal": 9, "reason": "killed by SIGKILL"}],
        )
    finally:
        if stopped.agent is not None and stopped.agent.poll() is None:
            os.kill(stopped.agent.pid, signal.SIGCONT)
        for rank in ranks:
            end_process(rank.pid)
            rank.wait()
        for node in (gone, stopped, centre):
            node.stop()
