"""What SQL shows of the exit code of a script, on this kernel and on one that forgets it once the parent has waited."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog_schemas.process.exit_status import UNKNOWN_EXIT
from tests.support.marks import everyday
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.xdist_group("exits")  # one worker: the cases share a node

# Half a second before the end: the agent is sure to have a pidfd of the process by then.
SCRIPT = """
import atexit, sys, time
from sys import exit as leave
import chiplog
run = chiplog.init(label="rank", capture_console=False)
run.log({"x": 1.0})
while not run._journal.acked:
    time.sleep(0.01)
time.sleep(0.2)
{end}
"""
REASON = "SystemExit, or an exception that no hook saw"


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A real collector and a real agent. Each case has its own run in it."""
    with Node(tmp_path_factory.mktemp("exits") / "chiplog") as node:
        yield node.start()


def ended(node: Node, tmp_path: Path, end: str, *prefix: str) -> tuple[int, dict[str, Any]]:
    """Run a script that ends so, in a run with the name of `tmp_path`; return its exit code and its row of labels."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{end}", end))
    environ = os.environ | {"CHIPLOG_DIR": str(node.root), "CHIPLOG_RUN_ID": tmp_path.name}
    done = subprocess.run([*prefix, sys.executable, str(script)], capture_output=True, timeout=WAIT_S, env=environ)
    labels = f"SELECT * FROM labels WHERE run_id = '{tmp_path.name}'"
    [row] = node.until(labels, lambda rows: rows[0]["state"] != "running")
    return done.returncode, row


@proves("unseen-exit-is-not-normal", "an end that no hook saw is not taken for a normal one", condition=False)
@proves(
    "lock-held-until-exit",
    "the lock of a run whose exit status decides is held until the process is gone",
    part="keep_lock=is_open",
    new="keep_lock=False",
)
@pytest.mark.parametrize(
    ("end", "state", "code", "reason"),
    everyday(
        7,
        [
            ("raise SystemExit(4)", "failed", 4, f"exit code 4: {REASON}"),
            ("exit(2)", "failed", 2, f"exit code 2: {REASON}"),
            ("leave(3)", "failed", 3, f"exit code 3: {REASON}"),
            ("raise SystemExit('no')", "failed", 1, f"exit code 1: {REASON}"),
            ("raise SystemExit", "finished", 0, None),
            ("exit()", "finished", 0, None),
            ("sys.excepthook = lambda *_: None\nraise ValueError('unseen')", "failed", 1, f"exit code 1: {REASON}"),
            ("sys.exit(5)", "failed", 5, "SystemExit: 5"),
            ("sys.exit(0)", "finished", 0, None),
            ("pass", "finished", 0, None),
            (
                "atexit.register(lambda: run.log({'y': 2.0}))\nraise SystemExit(6)",
                "failed",
                6,
                f"exit code 6: {REASON}",
            ),
            ("run.finish()\nraise SystemExit(7)", "finished", 0, None),  # what finish() said stays
            ("with run:\n    raise SystemExit(8)", "failed", 8, "SystemExit: 8"),
        ],
    ),
)
def test_an_exit_that_no_hook_sees_has_the_code_of_the_kernel(
    shared_node: Node, tmp_path: Path, end: str, state: str, code: int, reason: str | None
) -> None:
    returncode, row = ended(shared_node, tmp_path, end)
    of_run = f"run_id = '{tmp_path.name}'"
    assert (row["state"], row["exit_code"], row["reason"]) == (state, code, reason)
    assert returncode == code or "finish()" in end
    complete = shared_node.sql(f"SELECT pending, lost FROM completeness WHERE {of_run}")
    assert complete == [{"pending": 0, "lost": 0}]
    [run] = shared_node.sql(f"SELECT state, exit_code FROM runs WHERE {of_run}")
    assert (run["state"], run["exit_code"]) == (state, code)
    n_events = len(shared_node.sql(f"SELECT 1 FROM events WHERE {of_run} AND kind IN ('failed', 'crashed')"))
    assert n_events == (state == "failed")


def old_kernel(node: Node) -> list[str]:
    """Start collector and agent on an old kernel; return the prefix of a command that runs on one."""
    node.start_collector()
    prefix = [sys.executable, "-m", "tests.support.old_kernel"]
    node.root.mkdir(parents=True, exist_ok=True)
    with open(node.root / "chiplog_agent.log", "ab") as log:
        command = [*prefix, sys.executable, "-P", "-m", "chiplog_agent", "--dir", str(node.root), "--no-stats"]
        node.agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return prefix


@proves("unseen-exit-is-not-normal", "an unknown exit code does not become 0", condition=False)
@pytest.mark.parametrize(
    ("end", "known"),
    [
        ("raise SystemExit(4)", ("failed", 4, f"exit code 4: {REASON}")),
        ("raise SystemExit", ("finished", 0, None)),
    ],
)
@pytest.mark.full
def test_an_exit_code_that_the_kernel_has_forgotten_is_null_and_never_finished(
    bare_node: Node, tmp_path: Path, end: str, known: tuple[str, int, str | None]
) -> None:
    prefix = old_kernel(bare_node)
    _, row = ended(bare_node, tmp_path, end, *prefix)
    # The parent waits at once. Where the agent was faster nevertheless, it saw the zombie.
    assert (row["state"], row["exit_code"], row["reason"]) in (known, ("crashed", None, UNKNOWN_EXIT))


@pytest.mark.full
def test_normal_ends_need_no_kernel_that_remembers(bare_node: Node, tmp_path: Path) -> None:
    _, row = ended(bare_node, tmp_path, "pass", *old_kernel(bare_node))
    assert (row["state"], row["exit_code"]) == ("finished", 0)
