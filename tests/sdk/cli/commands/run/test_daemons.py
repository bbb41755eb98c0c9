"""`chiplog up`: the daemons that it names are those that run in the end, and stay until `chiplog down`."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_cli.root import main
from chiplog_client import client, daemons
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.daemon import start_daemon
from chiplog_schemas.transport.collector_memory import remembered_collector
from tests.support.ports import free_ports
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

MODULES = (daemons.COLLECTOR, daemons.AGENT)


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Paths]:
    monkeypatch.delenv("CHIPLOG_COLLECTOR", raising=False)
    found = paths_for_root(tmp_path / "chiplog")
    yield found
    assert main(["down", "--dir", str(found.root)]) == 0


def check(where: Paths, said: str) -> None:
    """Check that what `up` printed are the daemons that hold the locks, and that they stay."""
    for module, line in zip(MODULES, said.splitlines(), strict=True):
        assert f"started (process {daemons.daemon_pid(where, module)})" in line, said
        assert not daemons.is_embedded(where, module), f"{module} would leave when idle"


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("CHIPLOG_COLD_GB", "CHIPLOG_COLD_GB='ten' is not a whole number from 0 to 1000000; change or unset it"),
        ("CHIPLOG_STORE_FILES", "CHIPLOG_STORE_FILES='ten' is neither 0 nor 1; change or unset it"),
        ("CHIPLOG_STORE", "CHIPLOG_STORE=ten is no address of a store; give file:///DIRECTORY"),
    ],
)
def test_up_names_a_bad_variable_before_it_starts_anything(where, capsys, monkeypatch, variable, line) -> None:
    monkeypatch.setenv(variable, "ten")
    assert main(["up", "--dir", str(where.root)]) == 2
    assert capsys.readouterr().err.startswith(f"chiplog up: {line}")
    assert not where.root.exists()


@pytest.mark.full
def test_up_replaces_the_daemons_of_a_training(where, capsys) -> None:
    daemons.start(where, daemons.AGENT, ["--embedded"])
    wait_until(lambda: daemons.daemon_pid(where, daemons.COLLECTOR) > 0, "the agent's own collector")
    assert main(["up", "--dir", str(where.root)]) == 0
    check(where, capsys.readouterr().out)


@proves("up-names-lasting-daemon", "up names the daemon that stays", new="if daemons.daemon_pid(where, module) == pid:")
@pytest.mark.full
def test_a_collector_that_a_training_started_in_between_is_not_the_one_that_up_names(
    where, capsys, monkeypatch
) -> None:
    starts = []

    def outrun(module, arguments, places) -> None:
        starts.append(module)
        if starts == [daemons.COLLECTOR]:
            start_daemon(module, ["--embedded"], places)
            wait_until(lambda: daemons.daemon_pid(where, module) > 0, "a collector that is faster")
        start_daemon(module, arguments, places)

    monkeypatch.setattr(daemons, "start_daemon", outrun)
    assert main(["up", "--dir", str(where.root)]) == 0
    check(where, capsys.readouterr().out)


@proves(
    "killed-collector-started-again",
    "a change starts a collector in place of a killed one that up had started",
    part="bool(bind or query or page)",
    new="True",
)
def test_a_change_after_a_kill_of_the_daemons_of_up_starts_a_collector(where, capsys) -> None:
    assert main(["up", "--dir", str(where.root)]) == 0
    script = "import chiplog; chiplog.init(run_id='killed-1', capture_console=False).finish()"
    environ = os.environ | {"CHIPLOG_DIR": str(where.root)}
    assert subprocess.run([sys.executable, "-c", script], env=environ, timeout=WAIT_S).returncode == 0
    for module in MODULES:
        pid = daemons.daemon_pid(where, module)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda module=module, pid=pid: daemons.daemon_pid(where, module) != pid, "a daemon that is gone")
    assert main(["edit", "killed-1", "--name", "again", "--dir", str(where.root)]) == 0
    assert main(["rm", "killed-1", "--yes", "--dir", str(where.root)]) == 0
    assert "deleted killed-1 (again)" in capsys.readouterr().out


def train(where: Paths, run_id: str, **environment: str) -> str:
    """Record a run in a process; return what it prints on stderr."""
    script = f"import chiplog; run = chiplog.init(run_id={run_id!r}, capture_console=False); run.log({{'a': 1}})"
    environ = os.environ | {"CHIPLOG_DIR": str(where.root), **environment}
    command = [sys.executable, "-c", f"{script}; run.finish()"]
    return subprocess.run(command, env=environ, timeout=WAIT_S, check=True, capture_output=True, text=True).stderr


@proves("up-ends-delivery-elsewhere", "up --collector local ends an agent that delivers elsewhere", condition=False)
@proves(
    "reader-reports-elsewhere",
    "a reader reports that its directory lacks what goes to another collector",
    condition=False,
)
def test_readers_report_a_mistyped_collector_and_the_remedy_that_brings_its_runs_back(
    where, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(where.root))
    mistyped = f"tcp://localhost:{free_ports()}"
    train(where, "before")
    assert main(["runs"]) == 0 and main(["down"]) == 0
    assert capsys.readouterr().err == ""
    train(where, "mistyped", CHIPLOG_COLLECTOR=mistyped)
    # As an operator: an agent that `up` would keep.
    daemons.stop(where, daemons.AGENT)
    assert main(["up"]) == 0
    wait_until(lambda: not any(where.journals.iterdir()), "an agent that has the run")
    assert f"this run goes to {mistyped}" in train(where, "after")
    capsys.readouterr()
    readings = [["runs"], ["show", "before"], ["sql", "FROM runs", "--no-start"], ["top", "before", "--once"]]
    for command in readings:
        assert main([*command, "--format", "json"]) == 0
        printed = capsys.readouterr()
        lines = [line for line in printed.err.splitlines() if mistyped in line]
        assert len(lines) == 1 and mistyped not in printed.out, printed
    assert "KiB wait in the spool" in lines[0]
    assert "has not answered yet" in lines[0] or "is out of reach" in lines[0]
    monkeypatch.setenv("CHIPLOG_COLLECTOR", mistyped)
    with monkeypatch.context() as patch:
        patch.setattr(client, "CONNECT_WAIT_S", 0.1)
        assert main(["runs"]) == 1
    assert "goes to the collector" not in capsys.readouterr().err, "it was asked for"
    remedy = lines[0].split("`")[1]
    assert main(shlex.split(remedy)[1:]) == 0
    check(where, capsys.readouterr().out)
    monkeypatch.delenv("CHIPLOG_COLLECTOR", raising=False)
    assert remembered_collector(where.agent) is None

    def listed() -> set[str]:
        assert main(["runs", "--columns", "run_id", "--format", "csv"]) == 0
        printed = capsys.readouterr()
        assert mistyped not in printed.err
        return set(printed.out.split()[1:])

    wait_until(lambda: listed() == {"before", "mistyped", "after"}, "all runs")
    assert main(["down"]) == 0
    train(where, "again")
    wait_until(lambda: "again" in listed(), "a run after the remedy")
