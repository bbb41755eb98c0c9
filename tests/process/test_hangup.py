"""Daemons shut down cleanly when their terminal closes, and an agent's report on its collector ends with the agent."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios

import pytest

from chiplog_cli.root import main
from chiplog_client import daemons
from chiplog_schemas.transport.link_status import LinkState
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


def on_terminal(node: Node, module: str, *, ignores_hangup: bool = False) -> tuple["subprocess.Popen[bytes]", int]:
    """Start a daemon with its own terminal, which closes with the returned descriptor."""
    master, slave = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        # Also when the tests themselves run under nohup.
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores_hangup else signal.SIG_DFL)

    node.root.mkdir(parents=True, exist_ok=True)
    with open(node.root / f"{module}.log", "ab") as log:
        command = [sys.executable, "-P", "-m", module, "--dir", str(node.root)]
        process = subprocess.Popen(command, stdin=slave, stdout=log, stderr=log, preexec_fn=take_terminal)
    os.close(slave)
    lock = daemons.lock_path(node.place, module)
    wait_until(lambda: daemons.lock_holder_pid(lock) == process.pid, "a daemon that holds its lock")
    said = "listens for events" if module == daemons.COLLECTOR else "serves"
    wait_until(lambda: said in node.output(module), "a daemon that serves")
    return process, master


@proves("hangup-ends-in-order", "a daemon whose terminal closes ends in good order")
@pytest.mark.parametrize(("module", "word"), [("chiplog_agent", "agent"), ("chiplog_collector", "receiver")])
def test_a_daemon_whose_terminal_closes_ends_in_good_order(bare_node: Node, module: str, word: str) -> None:
    process, terminal = on_terminal(bare_node, module)
    os.close(terminal)
    assert process.wait(WAIT_S) == 0
    assert f"{word} stopped" in bare_node.output(module)


@proves("nohup-survives-hangup", "a daemon under nohup outlives its terminal", condition=True)
def test_a_daemon_under_nohup_outlives_its_terminal(bare_node: Node) -> None:
    process, terminal = on_terminal(bare_node, "chiplog_agent", ignores_hangup=True)
    os.close(terminal)
    os.kill(process.pid, signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.terminate()
    assert process.wait(WAIT_S) == 0


@proves("link-report-of-live-agent", "a report about the link counts only while its agent lives", value="status")
def test_no_report_about_the_link_outlives_its_agent(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    def status() -> str:
        assert main(["status", "--dir", str(node.root), "--no-canary"]) == 0
        return capsys.readouterr().out

    wait_until(
        lambda: (link := daemons.collector_link_status(node.place)) and link.state is LinkState.OPEN,
        "a link that is open",
    )
    assert "answers" in status()
    node.kill_agent()
    assert daemons.collector_link_status(node.place) is None
    node.stop_collector()
    assert "answers" not in status()
    report = node.place.agent_link.read_bytes()
    node.start_agent()
    assert "answers" not in status()
    wait_until(lambda: node.output().count("serves") == 2, "an agent that takes signals")
    node.stop_agent()
    assert not node.place.agent_link.exists()
    node.start_agent()
    wait_until(lambda: node.output().count("serves") == 3, "an agent that has written its own report")
    node.place.agent_link.write_bytes(report)  # as if the disk had refused it
    assert daemons.collector_link_status(node.place) is None
    assert "answers" not in status()
