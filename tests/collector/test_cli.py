"""The collector's commands: what they refuse, each in one line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from chiplog_collector import cli as cli_module
from chiplog_collector.cli import collector, compact, rebuild, restore
from chiplog_collector.receiver import daemon as receiver_module
from chiplog_schemas.limit_settings import RANGES
from chiplog_schemas.paths import paths_for_root
from tests.support.safeguard import proves

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "configuration.md"
# What a collector and its children, or a command that reads its log, take from the environment, with a bad value and
# the beginning of the line; None: each text has a meaning, and a name that matches nothing is as if it was not given.
VARIABLES: dict[str, tuple[str, str] | None] = {
    "CHIPLOG_DIR": ("what?", "DuckDB cannot open a database in "),
    "CHIPLOG_STORE": ("bucket", "CHIPLOG_STORE=bucket is no address of a store; give file:///DIRECTORY"),
    "CHIPLOG_STORE_FILES": ("false", "CHIPLOG_STORE_FILES='false' is neither 0 nor 1; change or unset it"),
    "CHIPLOG_LOCAL_DIR": None,  # a relative path is a line of each process, and is not used
    "CHIPLOG_KEYS": None,  # a directory without keys is as none
    "CHIPLOG_NODE": None,
    "CHIPLOG_UI_PASSWORD": None,
    "CHIPLOG_UI_HOSTS": None,
    **{name: ("ten", f"{name}='ten' is not a whole number from ") for name in RANGES},
}
BAD = {name: bad for name, bad in VARIABLES.items() if bad is not None}
READ_BY_COLLECTOR_ALONE = ("CHIPLOG_STORE_FILES",)


def test_each_variable_that_a_collector_reads_is_among_those_that_are_tested() -> None:
    rows = re.findall(r"^\| `(CHIPLOG_[A-Z_]+)` \|(?: [\d,]+ \|)* ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    read = {name for name, readers in rows if {"all", "collector"} & set(re.split(r",\s*", readers.strip()))}
    assert read <= set(VARIABLES)
    assert set(VARIABLES) <= {name for name, _ in rows}


@pytest.mark.parametrize("variable", BAD)
def test_a_bad_variable_is_one_line_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    value, line = BAD[variable]
    monkeypatch.setattr(receiver_module.ReceiverDaemon, "__init__", lambda *_: pytest.fail("a collector was started"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "chiplog"))
    monkeypatch.setenv(variable, value)
    place = paths_for_root(tmp_path / "chiplog")
    place.collector.mkdir(parents=True)
    (tmp_path / "backup").mkdir()
    calls = [(collector, []), (rebuild, []), (compact, []), (restore, [str(tmp_path / "backup")])]
    for command, arguments in calls[:1] if variable in READ_BY_COLLECTOR_ALONE else calls:
        done = CliRunner().invoke(command, arguments)
        assert done.exit_code == 2, (command.name, done.output)
        assert done.output.splitlines()[-1].startswith(f"Error: {line}"), command.name
    assert list(place.collector.iterdir()) == []


@proves(
    "bad-limit-of-training-dropped",
    "a bad bound of a training does not end its index",
    value="read_limits(os.environ, logging.warning)",
)
@pytest.mark.parametrize("variable", RANGES)
def test_a_collector_that_a_training_starts_and_its_children_use_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[str | None] = []
    monkeypatch.setattr(receiver_module.ReceiverDaemon, "__init__", lambda *_: None)
    monkeypatch.setattr(receiver_module.ReceiverDaemon, "run", lambda _: started.append(os.environ.get(variable)))
    monkeypatch.setattr(cli_module, "reset_affinity", lambda: None)
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "chiplog"))
    monkeypatch.setenv(variable, "ten")
    assert CliRunner().invoke(collector, ["--embedded"]).exit_code == 0
    assert started == [None]
    assert [f"{variable}='ten' is not a whole number" in line for line in caplog.messages] == [True]


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
