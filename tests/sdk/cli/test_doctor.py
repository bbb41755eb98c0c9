"""`chiplog doctor` and the canaries of `doctor` and `status`, as real processes against real daemons."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog.cli import canary
from chiplog.ops import daemons, health_checks
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.storage.journal_dir import list_journals
from tests.support.node import Node
from tests.support.safeguard import Safeguard
from tests.support.waiting import wait_until

SAFEGUARDS = [
    Safeguard(
        "what sync has delivered is left out from then on",
        "delivered-journal-left-out",
        condition=False,
        test="test_offline_journals_are_delivered_once_and_doctor_is_content",
    ),
]


def run_cli(root: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "chiplog.cli", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env=dict(os.environ, CHIPLOG_DIR=str(root))
    )
    return done.returncode, done.stdout, done.stderr


def findings(root: Path) -> dict[str, health_checks.Finding]:
    return {finding.check: finding for finding in health_checks.run_checks(paths_for_root(root))}


def test_nothing_is_bad_where_nothing_has_run_yet(tmp_path: Path) -> None:
    found = findings(tmp_path / "new")
    assert not [finding for finding in found.values() if finding.verdict == health_checks.ERROR]
    assert not (tmp_path / "new").exists(), "a look makes nothing"


def test_a_directory_that_others_can_write_is_bad_and_the_remedy_is_named(chiplog_dir: Path) -> None:
    ensure_private_dir(chiplog_dir)
    chiplog_dir.chmod(0o777)
    found = findings(chiplog_dir)["directory"]
    assert (found.verdict, found.remedy) == (health_checks.ERROR, f"chmod go-w {chiplog_dir}")
    code, out, _ = run_cli(chiplog_dir, "doctor")
    assert code == 1
    assert f"chmod go-w {chiplog_dir}" in out


def test_journals_that_wait_for_an_agent_are_named(chiplog_dir: Path) -> None:
    script = "import chiplog, os; chiplog.init(agent='ipc:///nowhere/x.sock').log({'a': 1}); os._exit(1)"
    subprocess.run([sys.executable, "-c", script], env=dict(os.environ, CHIPLOG_DIR=str(chiplog_dir)), check=False)
    found = findings(chiplog_dir)["journals"]
    assert (found.verdict, found.remedy) == (health_checks.WARNING, "chiplog up delivers them")


def test_offline_journals_are_delivered_once_and_doctor_is_content(node: Node) -> None:
    script = "import chiplog; run = chiplog.init(mode='offline', run_id='off'); run.log({'a': 1}); run.finish()"
    subprocess.run([sys.executable, "-c", script], env=dict(os.environ, CHIPLOG_DIR=str(node.root)), check=True)
    n = len(list_journals(node.place.local / "offline"))
    assert n == 1, "it printed nothing"
    found = findings(node.root)["journals"]
    assert (found.verdict, found.found) == (health_checks.WARNING, "1 journal was recorded offline")
    code, out, _ = run_cli(node.root, "sync")
    assert (code, out) == (0, f"{n} of {n} journals delivered to the agent of {node.root}\n")
    node.until("SELECT value FROM metrics WHERE run_id = 'off' AND key = 'a'", lambda rows: len(rows) == 1)
    assert findings(node.root)["journals"].verdict == health_checks.OK
    assert json.loads(run_cli(node.root, "status", "--no-canary", "--format", "json")[1])["offline_journals"] == 0
    code, out, _ = run_cli(node.root, "sync")
    assert code == 0 and out.startswith(f"nothing is left to deliver: {n} journals and files in ")
    code, out, _ = run_cli(node.root, "sync", "--again")
    assert (code, out) == (0, f"{n} of {n} journals delivered to the agent of {node.root}\n")
    (_, journal), *_ = list_journals(node.place.local / "offline")
    (journal / "more").write_bytes(b"of a copy that was cut short before")
    assert findings(node.root)["journals"].found == "1 journal was recorded offline"
    (journal / "more").unlink()
    assert run_cli(node.root, "sync", "--delete")[0] == 0
    assert list_journals(node.place.local / "offline") == []


def test_journals_that_wait_although_an_agent_runs_are_named(node: Node) -> None:
    assert node.agent is not None
    node.agent.send_signal(signal.SIGSTOP)
    try:
        script = "import chiplog, os; chiplog.init().log({'a': 1}); os._exit(1)"
        subprocess.run([sys.executable, "-c", script], env=dict(os.environ, CHIPLOG_DIR=str(node.root)), check=False)
        assert findings(node.root)["journals"].verdict == health_checks.OK, "an agent needs a moment"
        (journal,) = node.place.journals.iterdir()
        for path in journal.iterdir():
            os.utime(path, (1, 1))
        found = findings(node.root)["journals"]
        assert found.verdict == health_checks.WARNING and found.found.startswith("1 journal of an ended process waits")
    finally:
        node.agent.send_signal(signal.SIGCONT)


def test_canaries_come_out_once_and_unaltered(node: Node) -> None:
    code, out, err = run_cli(node.root, "doctor", "--canary", "--events", "5000", "--format", "json")
    assert (code, err) == (0, "")
    found = {entry["check"]: entry for entry in json.loads(out)}["canary"]
    assert found["verdict"] == "ok"
    assert "5,000 events sent, 5,000 arrived, 0 lost, 0 doubled, 0 altered" in found["found"]
    assert node.sql("SELECT count(*) AS n FROM runs") == [{"n": 0}]


def test_doctor_counts_what_a_stopped_collector_keeps_from_sql(node: Node) -> None:
    assert node.collector is not None
    node.collector.send_signal(signal.SIGSTOP)
    try:
        code, out, _ = run_cli(
            node.root, "doctor", "--canary", "--events", "10", "--timeout-s", "3", "--format", "json"
        )
    finally:
        node.collector.send_signal(signal.SIGCONT)
    found = json.loads(out)[-1]
    assert (code, found["verdict"]) == (1, "bad")
    assert found["found"].startswith("10 of 10 events missing in SQL after 3 s")


def test_daemons_that_were_stopped_by_a_signal_are_named_with_the_remedy(node: Node) -> None:
    """They live and hold their locks: a check of PIDs alone finds nothing wrong."""
    assert node.agent is not None and node.collector is not None
    for process, module in ((node.agent, "agent"), (node.collector, "collector")):
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda process=process: daemons.is_sigstopped(process.pid), "a stopped process")
        try:
            found = findings(node.root)[module]
            assert (found.verdict, found.remedy) == (health_checks.ERROR, f"kill -CONT {process.pid}")
            if module == "agent":
                code, out, err = run_cli(node.root, "down")
                assert (code, out, err.count("\n")) == (1, "", 1)
                assert f"kill -CONT {process.pid}" in err
            _, out, _ = run_cli(node.root, "status", "--no-canary")
            assert module != "agent" or f"kill -CONT {process.pid}" in out
        finally:
            process.send_signal(signal.SIGCONT)
    assert not [finding for finding in findings(node.root).values() if finding.verdict == health_checks.ERROR]


def test_a_collector_that_is_out_of_reach_is_named(chiplog_dir: Path) -> None:
    node = Node(chiplog_dir)
    node.start_agent("--collector", "tcp://127.0.0.1:9")
    try:
        wait_until(
            lambda: (link := daemons.collector_link_status(node.place)) and link.state == "closed",
            "an agent that says so",
        )
        found = findings(node.root)["agent"]
        assert found.verdict == health_checks.WARNING and "tcp://127.0.0.1:9 is out of reach" in found.found
    finally:
        node.stop()


def test_altered_and_doubled_canaries_are_counted() -> None:
    class Answers:
        def sql(self, query: str, params: object) -> "Answers":
            return self

        def tuples(self) -> list[tuple[int, float]]:
            return [(0, 0.5), (1, 0.25), (1, 0.25), (2, 9.0)]

    assert canary._compare(Answers(), "token", [0.5, 0.25, 0.125, 1.0]) == (3, 1, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [("--events", "0"), ("--events", "many"), ("--timeout-s", "-1")])
def test_bad_options_are_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, out, err = run_cli(tmp_path, "doctor", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
