"""`chiplog up`: the daemons that it names are those that run in the end, and stay until `chiplog down`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog.cli.root import main
from chiplog.ops import daemons
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.daemon import start_daemon
from tests.support.safeguard import Safeguard
from tests.support.waiting import wait_until

SAFEGUARDS = [
    Safeguard(
        "up names the daemon that stays",
        "up-names-lasting-daemon",
        new="if daemons.daemon_pid(where, module) == pid:",
        test="test_a_collector_that_a_training_started_in_between_is_not_the_one_that_up_names",
    ),
    Safeguard(
        "a change starts a collector in place of a killed one that up had started",
        "killed-collector-started-again",
        part="bool(bind or query or page)",
        new="True",
        test="test_a_change_after_a_kill_of_the_daemons_of_up_starts_a_collector",
    ),
]
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


@pytest.mark.full
def test_up_replaces_the_daemons_of_a_training(where, capsys) -> None:
    daemons.start(where, daemons.AGENT, ["--embedded"])
    wait_until(lambda: daemons.daemon_pid(where, daemons.COLLECTOR) > 0, "the agent's own collector")
    assert main(["up", "--dir", str(where.root)]) == 0
    check(where, capsys.readouterr().out)


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


def test_a_change_after_a_kill_of_the_daemons_of_up_starts_a_collector(where, capsys) -> None:
    assert main(["up", "--dir", str(where.root)]) == 0
    script = "import chiplog; chiplog.init(run_id='killed-1', capture_console=False).finish()"
    environ = os.environ | {"CHIPLOG_DIR": str(where.root)}
    assert subprocess.run([sys.executable, "-c", script], env=environ, timeout=100).returncode == 0
    for module in MODULES:
        pid = daemons.daemon_pid(where, module)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda module=module, pid=pid: daemons.daemon_pid(where, module) != pid, "a daemon that is gone")
    assert main(["edit", "killed-1", "--name", "again", "--dir", str(where.root)]) == 0
    assert main(["rm", "killed-1", "--yes", "--dir", str(where.root)]) == 0
    assert "deleted killed-1 (again)" in capsys.readouterr().out
