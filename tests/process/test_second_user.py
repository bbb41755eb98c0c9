"""A second user of a node, with the environment of the first one's agent: nothing is lost, and one line reports it.

The users are real uids. Their directories are not under pytest's own, which only root can enter.
"""

import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from tests.support.hosts import Centre
from tests.support.node import end_process
from tests.support.safeguard import proves
from tests.support.tools import ROOT, needs
from tests.support.waiting import WAIT_S, wait_until

pytestmark = [
    pytest.mark.xdist_group("second_user"),
    needs(ROOT),
]

ALICE, BOB = 54_001, 54_002
PACKAGES = ("chiplog", "chiplog_agent", "chiplog_collector", "chiplog_schemas")


RANK = """
import sys, time
import chiplog
run = chiplog.init(run_id=sys.argv[1], capture_console=False)
for value in range(100):
    run.log({"x": float(value)}, step=value)
print("logged", flush=True)
if len(sys.argv) > 2:
    sys.stdin.readline()
run.finish()
"""


def interpreter() -> str:
    """Return a Python that other users may run, with what chiplog needs; sys.executable's may lie in root's home."""
    for path in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [path, "-c", "import subprocess, sys, zmq, msgpack; subprocess.run([sys.executable, '-c', ''])"]
        try:
            if subprocess.run(command, user=BOB, env=environment(), capture_output=True, check=False).returncode == 0:
                return path
        except OSError:
            continue
    pytest.skip("no interpreter that another user may run")


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


class User:
    """A uid with its own home."""

    def __init__(self, uid: int, home: Path, **variables: str) -> None:
        self.uid, self.home = uid, home
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        self.variables = environment(HOME=str(home), **variables)
        self.variables["PYTHONPATH"] = f"{home.parent / 'code'}{os.pathsep}{self.variables['PYTHONPATH']}"

    def start(self, *command: str, **options: object) -> "subprocess.Popen[str]":
        process: subprocess.Popen[str] = subprocess.Popen(
            [interpreter(), "-P", *command],
            user=self.uid,
            group=self.uid,
            extra_groups=[],
            env=self.variables,
            text=True,
            cwd="/",
            **options,  # type: ignore[call-overload]
        )
        return process

    def rank(self, *arguments: str) -> "subprocess.Popen[str]":
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return self.start("-c", RANK, *arguments, **pipes)

    def chiplog(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        with self.start("-m", "chiplog_cli", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            output, error = process.communicate(timeout=WAIT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, output, error)


@pytest.fixture
def homes() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="chiplog-users-"))
    path.chmod(0o755)
    for name in PACKAGES:  # as this process imports them, perhaps from directories that other users cannot read
        source = Path(str(importlib.import_module(name).__file__)).parent
        shutil.copytree(source, path / "code" / name, ignore=shutil.ignore_patterns("__pycache__"))
    yield path
    for directory in (path / "bob" / ".chiplog", path / "bob" / "own"):
        pid = lock_holder_pid(paths_for_root(directory).agent / "lock")
        if pid > 0:
            end_process(pid)
    shutil.rmtree(path)


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    centre = Centre(tmp_path / "centre")
    centre.start_collector()
    yield centre
    centre.stop()


@proves("foreign-directory-unused", "a directory of another user is not used", condition=True)
@proves("own-agent-delivers", "where another user's agent is named, one's own delivers")
@pytest.mark.full
def test_a_second_user_with_the_first_ones_environment_loses_nothing(centre: Centre, homes: Path) -> None:
    address = f"ipc://{homes}/alice/agent.sock"
    env = {"CHIPLOG_DIR": f"{homes}/alice/data", "CHIPLOG_AGENT": address, "CHIPLOG_COLLECTOR": centre.address}
    alice, bob = User(ALICE, homes / "alice", **env), User(BOB, homes / "bob", **env)
    flags = ("--no-stats", "--bind", address, "--collector", centre.address)
    with open(homes / "agent.log", "w") as log:
        agent = alice.start("-m", "chiplog_agent", *flags, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: (homes / "alice" / "agent.sock").exists(), "the first user's agent")
        rank = bob.rank("of-bob", "waits")
        assert rank.stdout is not None
        assert rank.stdout.readline() == "logged\n"
        centre.until("SELECT 1 FROM metrics WHERE run_id = 'of-bob' HAVING count(*) = 100")
        printed = rank.communicate("\n", timeout=WAIT_S)[1].splitlines()
        assert rank.returncode == 0
        [line] = [line for line in printed if "cannot be reached" in line]
        assert address in line and "permission denied" in line and f"{homes}/bob/.chiplog" in line
        [line] = [line for line in printed if "CHIPLOG_DIR" in line]
        assert f"{homes}/alice/data" in line and f"{homes}/bob/.chiplog" in line
        assert len(printed) == 2

        short = bob.rank("short")
        _, errors = short.communicate(timeout=WAIT_S)
        assert "permission denied" in errors, "also when the run is over within a second"
        centre.until("SELECT 1 FROM metrics WHERE run_id = 'short' HAVING count(*) = 100")

        status = bob.chiplog("status", "--no-canary", "--format", "csv")
        assert f"agent_named,{address} cannot be reached: permission denied" in status.stdout
        doctor = bob.chiplog("doctor", "--format", "csv")
        assert doctor.returncode == 1
        assert f'"{address}, by CHIPLOG_AGENT: permission denied"' in doctor.stdout
        assert alice.chiplog("doctor", "--format", "csv").stdout.count(f'"{address}, by CHIPLOG_AGENT, listens"') == 1

        mine = alice.rank("of-alice")
        _, errors = mine.communicate(timeout=WAIT_S)
        assert errors == ""
        centre.until("SELECT 1 FROM metrics WHERE run_id = 'of-alice' HAVING count(*) = 100")
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(WAIT_S)


@proves("unreachable-agent-reported", "an agent that was named and cannot be reached is reported", condition=False)
def test_a_named_agent_that_does_not_listen_is_reported_while_the_run_goes_on(centre: Centre, homes: Path) -> None:
    address = f"ipc://{homes}/bob/agent.sock"
    bob = User(BOB, homes / "bob", CHIPLOG_AGENT=address, CHIPLOG_COLLECTOR=centre.address)
    rank = bob.rank("r", "waits")
    assert rank.stdout is not None and rank.stderr is not None
    assert rank.stdout.readline() == "logged\n"
    logged_at = time.monotonic()
    if not select.select([rank.stderr], [], [], WAIT_S)[0]:
        rank.kill()
        pytest.fail(f"{WAIT_S:g} s without a line about the agent, while the run continues")
    line = rank.stderr.readline()
    print(f"reported {time.monotonic() - logged_at:.2f} s after the first values")
    assert address in line and "no such file" in line and "chiplog up" in line and f"{homes}/bob/.chiplog" in line
    _, errors = rank.communicate("\n", timeout=WAIT_S)
    assert "cannot be reached" not in errors, "once"
    assert not (homes / "bob" / ".chiplog" / "agent").exists(), "that one may be starting: no other is started"
    assert "1" in bob.chiplog("status", "--no-canary", "--format", "csv").stdout.partition("journals_waiting,")[2][:1]
    assert bob.chiplog("up").returncode == 0
    centre.until("SELECT 1 FROM metrics WHERE run_id = 'r' HAVING count(*) = 100")
