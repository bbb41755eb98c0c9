"""Processes that end before any agent is up: what they logged arrives, and how they ended is known."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog_cli.health_checks import WARNING
from chiplog_client import daemons
from chiplog_client.client import NoDataError, connect
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.process.daemon import output_path
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.storage.journal_dir import HEAD_NAME, LOCK_NAME
from chiplog_schemas.storage.segment_format import segment_name
from tests.support.findings import findings
from tests.support.marks import everyday
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.tools import ROOT, needs
from tests.support.waiting import WAIT_S, wait_until

LABELS = "SELECT label, state, exit_code, exit_signal, reason FROM labels ORDER BY label"
CLI = [sys.executable, "-m", "chiplog_cli"]

WORKERS = """
import multiprocessing, os
import chiplog

def work(n):
    run = chiplog.init(run_id="pool", label=f"worker{n}", capture_console=False)
    run.log({"x": float(n)})
    os._exit(0)

chiplog.setup()
context = multiprocessing.get_context("fork")
workers = [context.Process(target=work, args=(n,)) for n in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
"""
WAITS = """
import os
import chiplog
run = chiplog.init(run_id="waits", label="rank0", capture_console=False, agent="ipc:///nowhere/agent.sock")
run.log({"x": 1.0})
os._exit(3)
"""
FINISHES = """
import os
import chiplog
run = chiplog.init(run_id="short", label="rank0", capture_console=False)
run.log({"x": 1.0})
run.finish()
with chiplog.connect() as client:
    assert client.sql("SELECT 1 AS one").rows() == [{"one": 1}]
"""


def run_script(tmp_path: Path, script: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    path = tmp_path / "train.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, str(path)], env=os.environ | variables, capture_output=True, text=True, timeout=WAIT_S
    )


@proves("agent-started-with-journal", "an agent is started by the call that makes the journal", condition=False)
def test_a_worker_that_ends_at_once_is_collected_without_anybody_asking(chiplog_dir: Path, tmp_path: Path) -> None:
    done = run_script(tmp_path, WORKERS)
    assert done.returncode == 0, done.stderr
    rows = Node(chiplog_dir).until("SELECT label, value FROM metrics ORDER BY label", lambda rows: len(rows) == 4)
    assert rows == [{"label": f"worker{n}", "value": float(n)} for n in range(4)]


@proves("helper-knows-exit", "the console's helper knows how its rank ended from the start")
@pytest.mark.parametrize(
    ("end", "wanted"),
    everyday(
        1,
        [
            ("os.kill(os.getpid(), signal.SIGSEGV)", ("crashed", None, 11, "killed by SIGSEGV")),
            ("os._exit(7)", ("crashed", 7, None, "ended with exit code 7 without finish(): os._exit, or native code")),
            ("raise SystemExit(4)", ("failed", 4, None, "exit code 4: SystemExit, or an exception that no hook saw")),
            ("raise ValueError('boom')", ("failed", 1, None, "ValueError: boom")),
        ],
    ),
)
def test_a_signal_that_ends_a_rank_before_an_agent_is_up_is_known(
    chiplog_dir: Path, tmp_path: Path, end: str, wanted: tuple[Any, ...]
) -> None:
    run_script(tmp_path, f"import os, signal\nimport chiplog\nchiplog.init(run_id='quick').log({{'x': 1.0}})\n{end}\n")
    [row] = Node(chiplog_dir).until(LABELS, lambda rows: rows[0]["state"] != "running")
    assert tuple(row.values())[1:] == wanted


@proves("waiting-journals-delivered", "waiting journals are delivered when a client connects", value="[]")
def test_looking_starts_the_daemons_when_journals_wait_and_says_so(chiplog_dir: Path, tmp_path: Path) -> None:
    assert run_script(tmp_path, WAITS).returncode == 3
    where = paths_for_root(chiplog_dir)

    def look(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        command = [*CLI, *arguments]
        environment = os.environ | variables
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True}
        return subprocess.run(command, env=environment, text=True, timeout=WAIT_S, **streams)

    served = look("ui", "--no-start", "--port", "0", "--until-stdin-ends")
    assert (served.returncode, served.stderr) == (0, "")
    refused = [
        look("runs", "--no-start"),
        look("runs", CHIPLOG_AGENT="ipc:///nowhere/agent.sock"),
        look("sql", "FROM runs", "--no-start"),
    ]
    for done in refused:
        assert done.returncode == 1
        assert "nothing has been recorded" in done.stderr
    with pytest.raises(NoDataError):
        connect(start=False)
    assert lock_holder_pid(where.agent / "lock") == 0
    done = look("runs", "--format", "json")
    assert done.stderr.splitlines() == [
        f"chiplog: 1 journal of an ended process waits in {where.journals}; an agent and a collector were started to "
        "deliver it"
    ]
    [run] = json.loads(done.stdout)
    assert (run["run_id"], run["state"]) == ("waits", "crashed")
    assert look("runs").stderr == "", "once"


@needs(ROOT)
def test_journals_of_another_user_start_nothing(chiplog_dir: Path, tmp_path: Path) -> None:
    assert run_script(tmp_path, WAITS).returncode == 3
    where = paths_for_root(chiplog_dir)
    assert len(daemons.waiting_journals(where)) == 1
    os.chown(where.journals, 12345, 12345)
    assert daemons.waiting_journals(where) == []


@proves(
    "undelivered-spool-delivered",
    "events of ranks in the spool of a killed agent are delivered when a client connects",
    part=" or has_spool",
)
@proves("undelivered-spool-noted", "a spool shows that the collector lacks events of ranks")
@proves("undelivered-spool-found", "doctor finds events that no agent delivers", condition=False)
def test_a_reader_delivers_what_a_killed_agent_left_in_its_spool(chiplog_dir: Path, tmp_path: Path, capsys) -> None:
    where = paths_for_root(chiplog_dir)
    obstacle = output_path(where, daemons.COLLECTOR)
    ensure_private_dir(obstacle)  # the agent can start no collector
    agent = daemons.start(where, daemons.AGENT, ["--embedded"])  # one: ranks of a slow machine start another
    script = (
        "import chiplog\nwith chiplog.init(run_id='short', capture_console=False) as run:\n    run.log({'x': 1.0})\n"
    )
    assert run_script(tmp_path, script).returncode == 0
    wait_until(lambda: not list(where.journals.iterdir()), "an agent that has everything")
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not daemons.daemon_pid(where, daemons.AGENT), "the end of the agent")
    obstacle.rmdir()
    with pytest.raises(NoDataError):
        connect(start=False)
    found = findings(chiplog_dir)["agent"]
    assert (found.verdict, found.remedy) == (WARNING, "chiplog up delivers them")
    with connect() as client:
        assert client.sql("SELECT run_id, state FROM runs").rows() == [{"run_id": "short", "state": "finished"}]
    assert capsys.readouterr().err.splitlines() == [
        f"chiplog: the spool in {where.agent} has events that the collector lacks; an agent and a collector were "
        "started to deliver them"
    ]
    assert not daemons.has_undelivered_spool(where)


@proves(
    "foreign-spool-waits",
    "a spool for a named collector is not delivered to another one",
    part=" and self._delivers_here",
)
def test_a_spool_for_a_named_collector_waits_for_that_one(chiplog_dir: Path, tmp_path: Path) -> None:
    node = Node(chiplog_dir)
    node.start_agent("--collector", f"ipc://{tmp_path}/nobody.sock")
    script = (
        "import chiplog\nwith chiplog.init(run_id='short', capture_console=False) as run:\n    run.log({'x': 1.0})\n"
    )
    assert run_script(tmp_path, script).returncode == 0
    wait_until(lambda: not list(node.place.journals.iterdir()), "an agent that has everything")
    node.kill_agent()
    assert not daemons.has_undelivered_spool(node.place)


@proves(
    "unadoptable-starts-nothing",
    "a reader starts no daemons for journals that no agent can adopt",
    part="and is_adoptable(path)",
)
def test_a_directory_that_no_agent_can_adopt_starts_nothing(chiplog_dir: Path) -> None:
    where = paths_for_root(chiplog_dir)
    (where.journals / ("00" * 16)).mkdir(parents=True)
    (where.journals / ("11" * 16) / LOCK_NAME).mkdir(parents=True)
    headless = where.journals / ("22" * 16)
    (headless / HEAD_NAME).mkdir(parents=True)
    (headless / LOCK_NAME).touch()
    assert daemons.waiting_journals(where) == []
    command = [*CLI, "runs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    assert "nothing has been recorded" in done.stderr and "wait" not in done.stderr
    assert lock_holder_pid(where.agent / "lock") == 0


@proves("stalled-delivery-ends-wait", "a reader stops waiting once no more journals are delivered", value="False")
@pytest.mark.full
def test_a_reader_stops_waiting_for_a_journal_that_is_not_delivered(
    chiplog_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_script(tmp_path, WAITS).returncode == 3
    stuck = paths_for_root(chiplog_dir).journals / ("33" * 16)
    stuck.mkdir()
    (stuck / LOCK_NAME).touch()
    (stuck / segment_name(0)).mkdir()  # cannot be read
    wait_s = 90.0
    monkeypatch.setattr("chiplog_client.pending_delivery.DELIVER_WAIT_S", wait_s)
    begun = time.monotonic()
    with chiplog.connect() as client:
        assert client.sql("SELECT run_id, state FROM runs").rows() == [{"run_id": "waits", "state": "crashed"}]
    assert time.monotonic() - begun < wait_s
    assert stuck.exists()


@proves("connect-waits-for-collector", "connect() waits for a collector that is to come", condition=False)
def test_connect_right_after_finish_waits_for_the_index(chiplog_dir: Path, tmp_path: Path) -> None:
    done = run_script(tmp_path, FINISHES)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: lock_holder_pid(paths_for_root(chiplog_dir).collector / "lock"), "a collector")
