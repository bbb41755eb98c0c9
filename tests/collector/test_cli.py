"""The collector's commands: what they refuse, each in one line."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from chiplog_collector import cli as cli_module
from chiplog_collector.cli import collector, compact, rebuild
from chiplog_schemas.paths import paths_for_root
from tests.support.safeguard import proves


def hold(path: Path) -> "subprocess.Popen[bytes]":
    """Return a process that holds a lock."""
    code = (
        "import time; from pathlib import Path; from chiplog_schemas.process.file_lock import Lock; "
        f"lock = Lock(Path({str(path)!r})); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_rewriting_while_a_collector_runs_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    place = paths_for_root(tmp_path / "chiplog")
    place.collector.mkdir(parents=True)
    holder = hold(place.collector / "lock")
    try:
        for command in (rebuild, compact):
            done = CliRunner().invoke(command, ["--dir", str(place.root)])
            assert done.exit_code == 1
            assert f"held by collector process {holder.pid}" in done.output
            assert len(done.output.splitlines()) == 1
    finally:
        holder.kill()
        holder.communicate()
    done = CliRunner().invoke(rebuild, ["--dir", str(tmp_path / "nothing")])
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert CliRunner().invoke(collector, ["--bind", "tcp://0.0.0.0:5000"]).exit_code == 2


@pytest.mark.parametrize("name", ["what?", "back\\slash"])
def test_a_directory_in_which_duckdb_opens_no_database_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    for command in (collector, rebuild, compact):
        done = CliRunner().invoke(command, ["--dir", str(tmp_path / name)])
        assert done.exit_code == 2
        assert done.output.splitlines()[-1].startswith(f"Error: DuckDB cannot open a database in {tmp_path / name}")
    assert list(tmp_path.iterdir()) == []


@proves("index-ends-before-replacement", "no command replaces a database that an index writes")
def test_rewriting_waits_for_an_index_that_applies_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_module, "INDEX_LOCK_WAIT_S", 0.2)
    place = paths_for_root(tmp_path / "chiplog")
    place.collector.mkdir(parents=True)
    holder = hold(place.index_lock)
    try:
        for command in (rebuild, compact):
            done = CliRunner().invoke(command, ["--dir", str(place.root)])
            assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
            assert f"held by index process {holder.pid}" in done.output
    finally:
        holder.kill()
        holder.communicate()
    assert CliRunner().invoke(rebuild, ["--dir", str(place.root)]).exit_code == 0
