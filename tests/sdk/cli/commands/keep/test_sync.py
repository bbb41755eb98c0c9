"""`chiplog sync`: offline journals are delivered once, from this machine or another, and stay unless asked."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chiplog_cli import health_checks
from chiplog_cli.commands.keep.sync import _stage_file, _stage_journal
from chiplog_cli.root import main
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.storage.journal_dir import LOCK_NAME, list_journals
from tests.support.findings import findings
from tests.support.node import Node
from tests.support.safeguard import proves


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return a function that returns the exit code and the output of a command about a directory."""

    def run(root: Path, command: str, *arguments: str) -> tuple[int, str]:
        code = main([command, "--dir", str(root), *arguments])
        return code, capsys.readouterr().out

    return run


@proves("delivered-journal-left-out", "what sync has delivered is left out from then on", condition=False)
def test_offline_journals_are_delivered_once_and_doctor_is_content(run: Any, node: Node) -> None:
    script = "import chiplog; run = chiplog.init(mode='offline', run_id='off'); run.log({'a': 1}); run.finish()"
    subprocess.run([sys.executable, "-c", script], env=dict(os.environ, CHIPLOG_DIR=str(node.root)), check=True)
    n = len(list_journals(node.place.local / "offline"))
    assert n == 1, "it printed nothing"
    found = findings(node.root)["journals"]
    assert (found.verdict, found.found) == (health_checks.WARNING, "1 journal was recorded offline")
    code, out = run(node.root, "sync")
    assert (code, out) == (0, f"{n} of {n} journals delivered to the agent of {node.root}\n")
    node.until("SELECT value FROM metrics WHERE run_id = 'off' AND key = 'a'", lambda rows: len(rows) == 1)
    assert findings(node.root)["journals"].verdict == health_checks.OK
    assert json.loads(run(node.root, "status", "--no-canary", "--format", "json")[1])["offline_journals"] == 0
    code, out = run(node.root, "sync")
    assert code == 0 and out.startswith(f"nothing is left to deliver: {n} journals and files in ")
    code, out = run(node.root, "sync", "--again")
    assert (code, out) == (0, f"{n} of {n} journals delivered to the agent of {node.root}\n")
    (_, journal), *_ = list_journals(node.place.local / "offline")
    (journal / "more").write_bytes(b"of a copy that was cut short before")
    assert findings(node.root)["journals"].found == "1 journal was recorded offline"
    (journal / "more").unlink()
    assert run(node.root, "sync", "--delete")[0] == 0
    assert list_journals(node.place.local / "offline") == []


def test_a_directory_without_journals_is_no_failure_and_one_that_does_not_exist_is_bad_input(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "chiplog", "sync", str(tmp_path)) == (0, f"no journals in {tmp_path}\n")
    assert main(["sync", "--dir", str(tmp_path / "chiplog"), str(tmp_path / "typo")]) == 2
    assert f"directory '{tmp_path}/typo' does not exist; name one that holds journals" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "no agent was started"


@pytest.mark.parametrize("other", [None, "/dev/shm"], ids=["one file system", "two"])
def test_what_is_handed_over_is_linked_or_copied_and_never_its_lock(tmp_path: Path, other: str | None) -> None:
    where = paths_for_root(tmp_path / "chiplog")
    ensure_private_dir(where.journals)
    ensure_private_dir(where.outbox)
    with tempfile.TemporaryDirectory(dir=other or tmp_path) as directory:
        journal, content = Path(directory, "journal"), Path(directory, "content")
        journal.mkdir()
        for path in (journal / "head", journal / LOCK_NAME, content):
            path.write_bytes(b"12345")
        if other is not None:
            assert os.stat(directory).st_dev != os.stat(tmp_path).st_dev
        staged = _stage_journal(journal, where)
        assert staged == _stage_journal(journal, where) == where.journals / "journal"
        _stage_file(content, where.outbox)
        _stage_file(content, where.outbox)
        for path in (staged / "head", where.outbox / "content"):
            assert path.read_bytes() == b"12345"
            assert path.stat().st_nlink == (1 if other else 2)
    assert (staged / LOCK_NAME).stat().st_size == 0, "a lock of this directory"
    assert [path.name for path in (*where.journals.iterdir(), *where.outbox.iterdir())] == ["journal", "content"]
