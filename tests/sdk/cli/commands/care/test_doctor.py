"""`chiplog doctor`, as a real process against real daemons."""

import signal
from pathlib import Path

import pytest

from chiplog_cli import health_checks
from chiplog_client import daemons
from tests.support.command_line import run_cli
from tests.support.findings import findings
from tests.support.node import Node
from tests.support.waiting import wait_until


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
        finally:
            process.send_signal(signal.SIGCONT)
    assert not [finding for finding in findings(node.root).values() if finding.verdict == health_checks.ERROR]


@pytest.mark.parametrize("arguments", [("--events", "0"), ("--events", "many"), ("--timeout-s", "-1")])
def test_bad_options_are_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, out, err = run_cli(tmp_path, "doctor", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
