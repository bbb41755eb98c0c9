"""`chiplog store …`: one clear line for bad input, and what each command prints."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake

from chiplog_collector.store.commands import store as command
from chiplog_collector.store.delta_store import Addition, DeltaStore
from chiplog_collector.store.published_tables import COMPLETE
from tests.support.safeguard import proves
from tests.support.store_files import DAY, LOG, parquet

DONE = (
    "SELECT '{log}' AS log, {until}::BIGINT AS number, 'node-a' AS host, TIMESTAMPTZ '2026-11-28 10:00:00+00' AS cut_at"
)
ROWS = "SELECT 'r' AS run_id, 'p' AS producer, {until} * 10 + i AS seq, 'loss' AS key, i AS step FROM range(10) t(i)"
RANGES = "SELECT 'r' AS run_id, 'p' AS producer, {until} * 10 AS first_seq, {until} * 10 + 9 AS last_seq"


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/lake"
    store = DeltaStore(url, LOG)
    for until in range(3):
        for table, query in (("metrics", ROWS), ("intervals", RANGES), (COMPLETE, DONE)):
            file = parquet(tmp_path / "file.parquet", query.format(until=until, log=LOG))
            store.publish(Addition(table, file, DAY, until - 1, until))
    return url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_status_shows_tables_and_collectors(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.split() for line in run("status", url).output.splitlines()]
    assert ["metrics", "30", "3", "3"] in [line[:4] for line in lines]
    assert [LOG[:8], "node-a", "2", *"–" * 5] in lines


def test_init_makes_a_store_ready_and_refuses_a_foreign_one(tmp_path: Path, url: str) -> None:
    new = f"file://{tmp_path}/new"
    assert run("init", new).output == (
        f"{new} is ready; tables that it has: 0. Collectors publish to it with\n  chiplog collector --store {new}\n"
    )
    assert "tables that it has: 3. " in run("init", url).output
    write_deltalake(f"{tmp_path}/new/runs", pyarrow.table({"a": [1]}))
    refused = run("init", new)
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert f"{new}/runs is a table of another program; give chiplog a folder of its own" in refused.output


def test_compact_merges_all_pieces_and_verify_finds_no_fault(url: str) -> None:
    before = run("verify", url)
    assert before.exit_code == 0
    assert "metrics: 30 rows, files: 3\n" in before.output
    assert f"metrics of {DAY}: 3 pieces merged, files: 1, 30 rows\n" in run("compact", url).output
    assert "metrics: 30 rows, files: 1\n" in run("verify", url).output
    assert run("compact", url).output == "no deleted row is left in the files, and no piece is left worth a merge\n"
    assert run("vacuum", url).output == "no file is left that no snapshot of the last 7 days names\n"


def test_verify_ends_with_status_1_if_there_is_a_fault(url: str, tmp_path: Path) -> None:
    next((tmp_path / "lake" / "metrics" / f"day={DAY}").glob("*.parquet")).unlink()
    found = run("verify", url)
    assert found.exit_code == 1
    assert "cannot be read" in found.output
    assert found.output.splitlines()[-1] == f"Error: {url} has faults: 1"


def test_a_damaged_file_is_one_line(url: str, tmp_path: Path) -> None:
    next((tmp_path / "lake" / "metrics" / f"day={DAY}").glob("*.parquet")).write_bytes(b"damaged")
    found = run("compact", url)
    assert found.exit_code == 1
    assert f"Error: a file of the store {url} cannot be read: " in found.output
    assert len(found.output.splitlines()) == 1


@proves("living-log-not-retired", "a log whose collector runs is not retired", condition=False)
def test_a_log_is_retired_by_the_beginning_of_its_id_unless_its_collector_runs(url: str, tmp_path: Path) -> None:
    for log in (LOG, LOG[:8] + "00" * 12):
        DeltaStore(url, log).put_heartbeat({"host": "node-a"})
    for log, line in (
        ("ee", "no log begins with 'ee'; give an ID that chiplog store status"),
        (LOG[:4], f"2 logs begin with '{LOG[:4]}'; give"),
        ("", "2 logs begin with ''; give"),
        (LOG, f"log {LOG} is in use: its collector on node-a wrote 0 s ago; stop it, and try again after 180 s"),
    ):
        refused = run("retire", log, url)
        assert refused.exit_code
        assert line in refused.output
    before = time.time() - 200
    os.utime(tmp_path / "lake" / "heartbeats" / LOG, (before, before))
    line = "retired; if its collector returns, it gets a new log ID\n"
    assert run("retire", LOG[:9].upper(), url).output == f"log {LOG} of node-a is {line}"
    assert DeltaStore(url, LOG).retired() == {LOG}
    assert run("retire", LOG, url).output == f"log {LOG} of node-a is already {line}"


def test_check_says_what_a_store_can(tmp_path: Path) -> None:
    assert run("check", f"file://{tmp_path}/new").output == (
        f"file://{tmp_path}/new can be written, and refuses to create what exists\n"
    )
    (tmp_path / "file").write_bytes(b"")
    refused = run("check", f"file://{tmp_path}/file")
    assert refused.exit_code == 1
    assert f"the store file://{tmp_path}/file cannot be used: " in refused.output


@pytest.mark.parametrize("url", ["/data/lake", "file://data/lake", "ftp://host/lake", "s3://", "lake"])
def test_an_address_that_is_none_is_refused_with_the_known_ones(url: str) -> None:
    refused = run("status", url)
    assert refused.exit_code == 2
    assert f"{url} is no address of a store; give file:///DIRECTORY or another of file://…, s3://…" in refused.output


def test_without_the_extra_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "deltalake" else object())
    refused = run("status", "file:///lake")
    assert refused.exit_code == 2
    assert "a store needs deltalake; install them with pip install 'chiplog[lake]'" in refused.output


def test_the_store_of_the_environment_is_used_and_none_is_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "which store? give its URL, such as s3://BUCKET/FOLDER, or set CHIPLOG_STORE" in run("status").output
    monkeypatch.setenv("CHIPLOG_STORE", url)
    assert run("verify").exit_code == 0


@pytest.mark.parametrize("name", ["status", "verify", "compact", "vacuum", "views --for spark", "retire ab"])
def test_a_directory_that_does_not_exist_is_one_line_and_is_not_made(name: str, tmp_path: Path) -> None:
    refused = run(*name.split(), f"file://{tmp_path}/typo")
    assert refused.exit_code == 2
    assert f"{tmp_path}/typo is no directory, so no collector publishes to file:" in refused.output
    assert not list(tmp_path.iterdir())


def test_a_reader_that_leaves_is_no_fault_of_the_store(url: str) -> None:
    command_line = [sys.executable, "-m", "chiplog_collector.store.commands", "views", url, "--for", "spark"]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert "cannot be used" not in process.stderr.read()
