"""The checks of `chiplog doctor`: what each one finds in a directory, and the remedy that it names."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chiplog_cli import health_checks
from chiplog_cli.health_checks import CHECKS, ERROR, OK, WARNING, directory_bytes, released_gpus, run_checks
from chiplog_client import daemons
from chiplog_schemas.limits import MIB
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.process.file_lock import Lock
from chiplog_schemas.storage.journal_dir import HEAD_NAME
from chiplog_schemas.storage.segment_format import segment_name
from chiplog_schemas.transport.link_status import LinkState, write_link_status
from tests.support.findings import findings
from tests.support.lock_holder import lock_holder
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.tools import ROOT, needs
from tests.support.waiting import wait_until


@pytest.fixture
def where(chiplog_dir: Path) -> Paths:
    found = paths_for_root(chiplog_dir)
    for path in (found.root, found.local, found.journals, found.agent, found.collector):
        ensure_private_dir(path)
    return found


@contextmanager
def running(where: Paths, module: str) -> Iterator[None]:
    """Hold the lock of a daemon."""
    held = Lock(daemons.lock_path(where, module))
    try:
        yield
    finally:
        held.release()


@contextmanager
def soft_limit(kind: int, number: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_nothing_is_bad_where_nothing_has_run_yet(tmp_path: Path) -> None:
    found = findings(tmp_path / "new")
    assert not [finding for finding in found.values() if finding.verdict == ERROR]
    assert not (tmp_path / "new").exists(), "a look makes nothing"


def test_a_check_that_fails_is_a_finding_and_the_others_go_on(tmp_path: Path) -> None:
    found = list(run_checks(paths_for_root(tmp_path / ("x" * 300))))
    assert len(found) == len(CHECKS)
    failed = {finding.check: finding for finding in found}["directory"]
    assert failed.verdict == ERROR and "File name too long" in failed.found


@proves(
    "unlimited-inodes-are-fine", "a file system without a fixed number of inodes has enough of them", condition=False
)
@pytest.mark.parametrize(
    ("n_files", "n_free", "verdict", "words"),
    [
        (0, 0, OK, "as many files as fit"),  # btrfs
        (1_000_000, 0, ERROR, "0 of 1,000,000 inodes are free"),
        (1_000_000, 999, WARNING, "999 of 1,000,000"),
        (1_000_000, 500_000, OK, "500,000 of 1,000,000"),
    ],
)
def test_a_file_system_without_free_inodes_is_bad_and_one_that_counts_none_is_fine(
    where: Paths, monkeypatch: pytest.MonkeyPatch, n_files: int, n_free: int, verdict: str, words: str
) -> None:
    real = os.statvfs(where.root)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*real[:5], n_files, n_free, n_free, *real[8:])))
    [found] = [finding for finding in run_checks(where) if finding.check == "inodes"]
    assert (found.verdict, words in found.found, bool(found.remedy)) == (verdict, True, verdict != OK)


def test_a_directory_that_others_can_write_is_bad_and_the_remedy_is_named(chiplog_dir: Path) -> None:
    ensure_private_dir(chiplog_dir)
    chiplog_dir.chmod(0o777)
    found = findings(chiplog_dir)["directory"]
    assert (found.verdict, found.remedy) == (ERROR, f"chmod go-w {chiplog_dir}")


def test_a_directory_in_which_duckdb_opens_no_database_is_bad(tmp_path: Path) -> None:
    finding = findings(tmp_path / "what?")["directory"]
    assert finding.verdict == ERROR
    assert str(tmp_path / "what?") in finding.found


@needs(ROOT)
def test_a_directory_of_another_user_is_bad(where: Paths) -> None:
    assert findings(where.root)["directory"].verdict == OK
    os.chown(where.journals, 12345, -1)
    found = findings(where.root)["directory"]
    assert (found.verdict, found.found) == (ERROR, f"{where.journals} belongs to user 12345")


def test_a_disk_is_judged_by_its_kind_and_its_free_space(where: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged() -> tuple[str, str]:
        found = findings(where.root)["disk"]
        return found.verdict, found.remedy

    monkeypatch.setattr(health_checks, "SPOOL_BYTES_MAX", 0)
    monkeypatch.setattr(health_checks, "_FREE_BYTES_MIN", 0)
    assert judged() == (OK, "")
    monkeypatch.setattr(health_checks, "SPOOL_BYTES_MAX", 1 << 70)
    assert judged() == (WARNING, "a full spool needs 1099511627776 GiB; free some")
    monkeypatch.setattr(health_checks, "_FREE_BYTES_MIN", 1 << 70)
    assert judged() == (ERROR, "free some: four full journals need 1125899906842624 MiB")
    monkeypatch.setattr(health_checks, "LOCAL_FILE_SYSTEMS", frozenset())
    assert judged() == (ERROR, "set CHIPLOG_LOCAL_DIR to a directory on a disk of this node")


def test_what_a_journal_does_is_tried_and_leaves_nothing(where: Paths) -> None:
    before = sorted(where.local.iterdir())
    assert findings(where.root)["journal"].found == "files can be allocated and locked here"
    with soft_limit(resource.RLIMIT_FSIZE, MIB - 1):
        found = findings(where.root)["journal"]
    assert (found.verdict, found.remedy) == (ERROR, "set CHIPLOG_DIR to another file system")
    assert found.found == f"{where.local} cannot hold a journal: File too large"
    assert sorted(where.local.iterdir()) == before


def test_few_open_files_are_a_warning(where: Paths) -> None:
    with soft_limit(resource.RLIMIT_NOFILE, 1023):
        assert findings(where.root)["limits"].verdict == WARNING
    with soft_limit(resource.RLIMIT_NOFILE, 1024):
        assert findings(where.root)["limits"].verdict == OK


def test_a_named_agent_must_listen(where: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(where.root)["named agent"].found == "none is named: each user's own agent is used"
    address = f"ipc://{tmp_path}/agent"
    monkeypatch.setenv("CHIPLOG_AGENT", address)
    found = findings(where.root)["named agent"]
    assert (found.verdict, found.found) == (ERROR, f"{address}, by CHIPLOG_AGENT: no such file or directory")
    assert found.remedy.startswith("start it, or unset CHIPLOG_AGENT")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        listener.listen()
        assert findings(where.root)["named agent"].verdict == OK


def test_a_spool_that_waits_is_a_warning_with_an_agent_and_without(where: Paths) -> None:
    (where.agent / "spool").mkdir()
    for name in ("one", "two"):
        with open(where.agent / "spool" / name, "wb") as file:
            file.truncate(32 * MIB)  # no disk space: the file has only a hole
    assert findings(where.root)["agent"].verdict == OK
    with open(where.agent / "spool" / "three", "wb") as file:
        file.truncate(MIB)
    assert directory_bytes(where.agent / "spool") == 65 * MIB
    found = findings(where.root)["agent"]
    assert (found.verdict, found.found, found.remedy) == (
        WARNING,
        "none runs, 65 MiB wait in the spool",
        "chiplog up",
    )
    with running(where, daemons.AGENT):
        found = findings(where.root)["agent"]
    assert found.verdict == WARNING
    assert found.remedy == "see whether its collector answers: chiplog doctor --canary"


def test_a_minor_version_of_duckdb_that_was_not_tested_is_named(
    where: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings(where.root)["duckdb"].verdict == OK
    about = tmp_path / "duckdb-2.7.0.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: duckdb\nVersion: 2.7.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = findings(where.root)["duckdb"]
    assert found.verdict == WARNING
    assert found.found.startswith("2.7.0 was not tested with chiplog ")
    assert found.remedy == f"if a query or the collector fails: pip install 'duckdb=={health_checks.TESTED_DUCKDB}.*'"


@proves("unapplied-log-found", "doctor finds a log that no database has", condition=False)
def test_a_log_without_a_database_is_a_warning(where: Paths) -> None:
    assert findings(where.root)["collector"].verdict == OK
    (where.collector / "log").mkdir()
    (where.collector / "log" / segment_name(0)).touch()
    found = findings(where.root)["collector"]
    assert (found.verdict, found.found, found.remedy) == (
        WARNING,
        "none runs, and no database has its log",
        "chiplog up applies it",
    )
    where.index.touch()
    assert findings(where.root)["collector"].verdict == OK


def test_a_collector_that_refuses_events_is_bad(where: Paths) -> None:
    write_link_status(where.agent_link, LinkState.REFUSING, "collector a answers, and refuses 3 events")
    with running(where, daemons.AGENT):
        found = findings(where.root)["agent"]
    assert (found.verdict, found.remedy) == (
        ERROR,
        "chiplog keys allow with a --node for each of them, on the collector's host",
    )
    assert found.found.endswith("collector a answers, and refuses 3 events")


def test_a_collector_that_does_not_answer_is_a_warning(where: Paths) -> None:
    write_link_status(where.agent_link, LinkState.CLOSED, "tcp://127.0.0.1:9 is out of reach")
    with running(where, daemons.AGENT):
        found = findings(where.root)["agent"]
    assert found.verdict == WARNING and "tcp://127.0.0.1:9 is out of reach" in found.found


def test_a_collector_is_one_that_is_named_or_runs_or_will_be_started(
    where: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings(where.root)["collector"].found == "none runs; an agent starts one"
    with running(where, daemons.COLLECTOR):
        assert findings(where.root)["collector"].found == f"process {os.getpid()}, log 0 MiB"
    monkeypatch.setenv("CHIPLOG_COLLECTOR", "tcp://a:7000")
    assert findings(where.root)["collector"].found == "tcp://a:7000, by CHIPLOG_COLLECTOR; see the agent's line"


def test_a_daemon_that_a_signal_stopped_is_bad(where: Paths) -> None:
    with lock_holder(daemons.lock_path(where, daemons.COLLECTOR)) as holder:
        holder.send_signal(signal.SIGSTOP)
        wait_until(lambda: daemons.is_sigstopped(holder.pid), "a stopped process")
        found = findings(where.root)["collector"]
    assert (found.verdict, found.remedy) == (ERROR, f"kill -CONT {holder.pid}")


def test_a_journal_that_no_agent_can_adopt_is_named_once_it_is_old(where: Paths) -> None:
    stuck = where.journals / ("11" * 16)
    stuck.mkdir()
    (stuck / "other").touch()
    with running(where, daemons.AGENT):
        assert findings(where.root)["journals"].verdict == OK, "its process may be making it"
        os.utime(stuck / "other", (1, 1))
        found = findings(where.root)["journals"]
    assert found.verdict == WARNING
    assert found.found.startswith(f"no agent can adopt 1 of the journals, such as {stuck}: ")


def test_journals_of_a_live_process_do_not_wait(where: Paths) -> None:
    journal = where.journals / ("11" * 16)
    journal.mkdir()
    (journal / HEAD_NAME).touch()
    assert findings(where.root)["journals"].remedy == "chiplog up delivers them"
    held = Lock(journal / "lock")
    try:
        assert findings(where.root)["journals"].verdict == OK
    finally:
        held.release()


def test_journals_that_were_recorded_offline_are_counted(where: Paths) -> None:
    for name in ("11" * 16, "22" * 16):
        (where.local / "offline" / name).mkdir(parents=True)
    found = findings(where.root)["journals"]
    assert (found.verdict, found.found) == (WARNING, "2 journals were recorded offline")


def test_journals_that_wait_although_an_agent_runs_are_named(node: Node) -> None:
    assert node.agent is not None
    node.agent.send_signal(signal.SIGSTOP)
    try:
        script = "import chiplog, os; chiplog.init().log({'a': 1}); os._exit(1)"
        subprocess.run([sys.executable, "-c", script], env=dict(os.environ, CHIPLOG_DIR=str(node.root)), check=False)
        assert findings(node.root)["journals"].verdict == OK, "an agent needs a moment"
        (journal,) = node.place.journals.iterdir()

        def found_old() -> bool:
            for path in journal.iterdir():
                os.utime(path, (1, 1))
            found = findings(node.root)["journals"]
            return found.verdict == WARNING and found.found.startswith("1 journal of an ended process waits")

        # The rank's console helper writes the exit status into the journal, seconds later on a busy machine.
        wait_until(found_old, "a warning, once nothing writes into the journal")
    finally:
        node.agent.send_signal(signal.SIGCONT)


def test_released_gpus_are_a_warning(where: Paths) -> None:
    assert released_gpus(where) is None
    where.gpus_released.touch()
    os.utime(where.gpus_released, (86_400, 86_400))
    found = findings(where.root)["gpu"]
    assert (found.verdict, found.remedy) == (WARNING, "chiplog agent gpu resume")
    assert "since 1970-01-02 00:00 UTC" in found.found


def test_a_store_is_probed_if_one_is_named(where: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHIPLOG_STORE", raising=False)
    assert findings(where.root)["store"].found == "none; CHIPLOG_STORE names one"
    url = f"file://{tmp_path}/lake"
    monkeypatch.setenv("CHIPLOG_STORE", url)
    found = findings(where.root)["store"]
    assert (found.verdict, found.found) == (OK, f"{url} can be written, and refuses to create what exists")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("CHIPLOG_STORE", f"file://{tmp_path}/file")
    found = findings(where.root)["store"]
    assert found.verdict == ERROR and found.found.startswith(f"the store file://{tmp_path}/file cannot be used: ")
    assert "chiplog store check" in found.remedy
