"""A full disk, and calls that fail, under the commands that write: `rebuild`, `compact`, `sync`.

Each reports it in one line and ends with status 1. The existing files are unchanged, no partial file remains, and the
same command succeeds when there is room again.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.disk.faults import OPEN, RENAME, SYNC, WRITE, Disk, Faults, build_library, small_disk
from tests.support.node import Node
from tests.support.oracle import ORACLE, compare
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

ENOSPC, EIO = errno.ENOSPC, errno.EIO
MIB = 1 << 20
EVENTS = 20_000
VALUES = "SELECT step, value FROM metrics WHERE run_id = 'oracle' AND key = 'value'"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "small", 48 * MIB) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("faults"))


def chiplog(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "chiplog_cli", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def record(root: Path, file: Path, *options: str, **environment: str) -> None:
    command = [sys.executable, "-P", ORACLE, str(file), "--run-id", "oracle", "--events", str(EVENTS)]
    subprocess.run([*command, *options], env={**os.environ, "CHIPLOG_DIR": str(root), **environment}, check=True)


def ask(root: Path) -> list[dict[str, Any]]:
    import chiplog as sdk

    with sdk.connect(dir=root) as client:
        return client.sql(VALUES).rows()


def refused(command: str, done: "subprocess.CompletedProcess[str]", remedy: str) -> None:
    assert done.returncode == 1, (command, done)
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr, done.stderr
    assert remedy in done.stderr, done.stderr


@proves("failed-database-removed", "a new database that could not be made does not stay")
@proves("duckdb-write-error-one-line", "what DuckDB cannot write is one line", value="ZeroDivisionError")
@pytest.mark.full
def test_a_database_that_cannot_be_rewritten_stays_as_it_was(disk: Disk, library: Path, tmp_path: Path) -> None:
    root, file = disk.path / "chiplog", tmp_path / "oracle"
    with Node(root) as node:
        node.start()
        record(root, file, CHIPLOG_AGENT=node.place.agent_address)  # so that no other one starts, and outlives it
        node.until(VALUES, lambda rows: len(rows) == EVENTS)
    index = node.place.index
    faults = Faults(library, tmp_path / "control")
    sites: list[tuple[str, Callable[[], None]]] = [
        ("a full disk", disk.fill),
        ("open", lambda: faults.fail(OPEN, root, "ing.duckdb", EIO)),
        ("write", lambda: faults.fail(WRITE, root, "ing.duckdb", ENOSPC, skip=3)),
        ("sync", lambda: faults.fail(SYNC, root, "ing.duckdb", EIO)),
        ("rename", lambda: faults.fail(RENAME, root, "ing.duckdb", EIO)),
    ]
    for command in ("rebuild", "compact"):
        for name, fail in sites:
            fail()
            done = chiplog(command, "--dir", str(root), **faults.environment)
            refused(f"{command}, {name}", done, "the existing file is unchanged")
            if name == "a full disk":
                disk.free()
            else:
                assert faults.hits[0] > 0, f"{command}: nothing failed at {name}"
            faults.heal()
            assert [path.name for path in index.parent.glob("index-*")] == [], f"{command}, {name}"
            verdict = compare(file, ask(root))
            assert verdict.ok, f"{command}, {name}: {verdict}"
        done = chiplog(command, "--dir", str(root), **faults.environment)
        assert done.returncode == 0, done.stderr
        assert compare(file, ask(root)).ok


@proves("half-copy-removed", "half a handed-over journal does not stay")
def test_a_journal_that_cannot_be_handed_over_stays_where_it_is_and_is_delivered_later(
    disk: Disk, tmp_path: Path
) -> None:
    """The journals lie on another file system, so that they are copied."""
    root, brought, file = disk.path / "chiplog", tmp_path / "brought", tmp_path / "oracle"
    record(brought, file, CHIPLOG_MODE="offline")
    (journal,) = (brought / "offline").iterdir()
    held = {path.name: path.read_bytes() for path in journal.iterdir()}
    with Node(root) as node:
        node.start()
        disk.fill(but=MIB)
        done = chiplog("sync", str(brought), "--dir", str(root))
        refused("sync", done, "journals cannot be handed over")
        assert "No space left on device" in done.stderr
        assert list(node.place.journals.iterdir()) == []
        assert {path.name: path.read_bytes() for path in journal.iterdir()} == held
        disk.free()
        done = chiplog("sync", str(brought), "--dir", str(root))
        assert done.returncode == 0, done.stderr
        verdict = compare(file, node.until(VALUES, lambda rows: len(rows) >= EVENTS))
        assert verdict.ok, verdict
