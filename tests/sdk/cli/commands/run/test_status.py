"""`chiplog status`: what runs, what waits, and whether an event arrives; without daemons too, and with stopped ones."""

import csv
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chiplog_cli.commands.run import status
from chiplog_cli.root import main
from chiplog_client import daemons
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.journal_dir import list_journals
from tests.support.command_line import environment
from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until

RANK = """
import chiplog, sys
run = chiplog.init(run_id="r", agent="ipc:///nonexistent/agent.sock", capture_console=True)
print("begun", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return a function that returns the exit code of `chiplog status`, and its facts."""

    def ask(root: Path, *options: str) -> tuple[int, dict[str, Any]]:
        code = main(["status", "--dir", str(root), "--format", "json", *options])
        return code, json.loads(capsys.readouterr().out)

    return ask


def test_status_counts_ranks_and_not_the_helpers_of_their_consoles(ask: Any, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RANK], env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    journals = paths_for_root(tmp_path).journals
    wait_until(lambda: len(list_journals(journals)) == 2, "a journal of the rank and one of its console's helper")
    facts = ask(tmp_path, "--no-canary")[1]
    assert (facts["ranks_logging"], facts["journals_waiting"]) == (1, 0)
    process.kill()
    process.communicate(timeout=WAIT_S)


def test_where_nothing_runs_no_event_is_sent_and_nothing_is_made(ask: Any, tmp_path: Path) -> None:
    code, facts = ask(tmp_path / "new")
    assert code == 0
    assert facts.pop("canary").startswith("not sent: no agent runs")
    assert (facts.pop("dir"), not any(facts.values())) == (str(tmp_path / "new"), True)
    assert list(tmp_path.iterdir()) == []


def test_released_gpus_are_a_line(ask: Any, tmp_path: Path) -> None:
    mark = paths_for_root(tmp_path).gpus_released
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert "chiplog agent gpu resume" in ask(tmp_path, "--no-canary")[1]["gpus"]


def test_people_read_lines_and_programs_read_csv(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["status", "--dir", str(tmp_path), "--no-canary"]) == 0
    shown = dict(re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines())
    assert (shown["agent pid"], shown["collector pid"], shown["spool bytes"]) == ("not running", "not running", "0")
    assert "agent link" not in shown, "there is no agent"
    assert main(["status", "--dir", str(tmp_path), "--no-canary", "--format", "csv"]) == 0
    header, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert (header, dict(rows)["agent_pid"]) == (["name", "value"], "")


def test_an_agent_that_is_named_and_does_not_listen_is_reported(
    ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"ipc://{tmp_path}/nowhere.sock"
    monkeypatch.setenv("CHIPLOG_AGENT", address)
    assert ask(tmp_path, "--no-canary")[1]["agent_named"].startswith(f"{address} cannot be reached: ")


def test_an_event_arrives_unless_a_daemon_is_stopped(ask: Any, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.agent is not None and node.collector is not None
    monkeypatch.setattr(status, "CANARY_WAIT_S", 25.0)  # less than a query may take
    code, facts = ask(node.root)
    assert code == 0, facts["canary"]
    assert "in SQL after" in facts["canary"]
    assert (facts["agent_pid"], facts["collector_pid"]) == (node.agent.pid, node.collector.pid)
    assert facts["log_bytes"] > 0 and facts["index_bytes"] > 0
    monkeypatch.setattr(status, "CANARY_WAIT_S", 0.5)
    for process in (node.collector, node.agent):
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda process=process: daemons.is_sigstopped(process.pid), "a stopped process")
        try:
            code, facts = ask(node.root)
        finally:
            process.send_signal(signal.SIGCONT)
        assert code == 1
        assert facts["canary"].startswith("did not arrive within 0.5 s: ")
    assert facts["agent_link_state"] == "stopped"
    assert f"kill -CONT {node.agent.pid}" in facts["agent_link"]
