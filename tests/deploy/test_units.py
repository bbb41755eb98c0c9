"""The unit files and env files of deploy/, as systemd would use them: their own command lines, as real processes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psutil
import pytest

import chiplog
from chiplog_client.client import NoDataError, QueryError
from chiplog_schemas.storage.journal_dir import list_journals
from tests.support.ports import free_ports
from tests.support.tools import needs
from tests.support.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = ("chiplog-collector", "chiplog-agent")
CHIPLOG = Path(sys.executable).parent / "chiplog"
STEPS = 200

TRAINING = f"""
import chiplog
run = chiplog.init(project="deploy", run_id="deployed", label="rank0", primary=True, config={{"lr": 0.1}})
for step in range({STEPS}):
    run.log({{"loss": 1.0 / (step + 1), "grad_norm": float(step)}}, step=step)
print("said on the console")
run.finish()
"""


def settings_of(unit: str) -> dict[str, str]:
    """Return the settings of a unit file. None of ours is repeated, but for the section's end."""
    settings: dict[str, str] = {}
    for line in (DEPLOY / f"{unit}.service").read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            assert name not in settings, f"{unit}.service says {name}= twice"
            settings[name] = value
    return settings


def env_of(unit: str) -> dict[str, str]:
    """Return the variables of the file that the unit's EnvironmentFile= names."""
    installed_at = Path(settings_of(unit)["EnvironmentFile"])
    assert installed_at.parent == Path("/etc/chiplog")
    lines = (DEPLOY / installed_at.name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


class Deployed:
    """A host on which both units run, under one directory: only paths and the port are not those of the files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_ports()
        self.environments = {unit: {k: self.here(v) for k, v in env_of(unit).items()} for unit in UNITS}
        self.running: dict[str, psutil.Popen] = {}

    def here(self, text: str) -> str:
        for word in ("/var/lib", "/run"):
            text = re.sub(rf"(?<![\w.]){word}/", f"{self.directory}{word}/", text)
        return text.replace(":4100", f":{self.port}")

    def start(self, unit: str) -> None:
        """Do what systemd does: make the directories, expand the command line, start it with the env file alone."""
        settings, environment = settings_of(unit), self.environments[unit]
        for parent, name in (("var/lib", "StateDirectory"), ("run", "RuntimeDirectory")):
            if name in settings:
                made = self.directory / parent / settings[name]
                made.mkdir(mode=int(settings[f"{name}Mode"], 8), parents=True, exist_ok=True)
        program, *arguments = shlex.split(settings["ExecStart"])
        assert program == "/opt/chiplog/bin/chiplog"
        expanded = [
            word
            for argument in arguments
            for word in (
                shlex.split(environment[argument[1:]])  # a name without braces: its words
                if re.fullmatch(r"\$\w+", argument)
                else [re.sub(r"\$\{(\w+)\}", lambda match: environment[match[1]], argument)]
            )
        ]
        with open(self.directory / f"{unit}.out", "ab") as output:
            self.running[unit] = psutil.Popen(
                [CHIPLOG, *expanded],
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
                cwd="/",
                umask=int(settings["UMask"], 8),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def stop(self, unit: str) -> tuple[int, list[psutil.Process]]:
        """SIGTERM to the main process alone, as KillMode=mixed has it; return its exit code and who outlived it."""
        settings = settings_of(unit)
        assert settings["KillMode"] == "mixed"
        main = self.running[unit]
        family = main.children(recursive=True)
        main.send_signal(signal.SIGTERM)
        code = main.wait(float(settings["TimeoutStopSec"]))
        del self.running[unit]
        _, alive = psutil.wait_procs(family, timeout=WAIT_S)  # they end with the main process, and not before it
        return code, alive

    def said(self, unit: str) -> str:
        return (self.directory / f"{unit}.out").read_text()

    def wait_for(self, unit: str, words: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while words not in self.said(unit):
            assert self.running[unit].poll() is None, f"{unit} ended:\n{self.said(unit)}"
            assert time.monotonic() < deadline, f"{unit} never said {words!r}:\n{self.said(unit)}"
            time.sleep(0.05)

    def close(self) -> None:
        for process in self.running.values():
            if process.poll() is not None:
                continue
            for each in [*process.children(recursive=True), process]:
                each.kill()
            process.wait(WAIT_S)


@pytest.fixture
def deployed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    for name in list(os.environ):
        if name.startswith("CHIPLOG_"):
            monkeypatch.delenv(name)
    host = Deployed(tmp_path_factory.mktemp("host"))
    yield host
    host.close()


def environment_of_a_user(host: Deployed) -> dict[str, str]:
    """Return what a training has that the README's `. /etc/chiplog/agent.env` went before."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
    return {**plain, **host.environments["chiplog-agent"]}


def train(host: Deployed) -> str:
    """Run the training, and return what it printed on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINING],
        env=environment_of_a_user(host),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def rows_when(host: Deployed, query: str, wanted: object) -> None:
    """Ask the collector at the address of the env file until it gives this answer."""
    deadline = time.monotonic() + WAIT_S
    answer: object = None
    while answer != wanted:
        assert time.monotonic() < deadline, f"{query} gave {answer}, not {wanted}\n{host.said('chiplog-collector')}"
        try:
            with chiplog.connect(host.environments["chiplog-agent"]["CHIPLOG_COLLECTOR"]) as client:
                answer = client.sql(query).rows()
        except (NoDataError, QueryError) as error:
            answer = error
        time.sleep(0.1)


def test_units_carry_a_run_from_a_rank_into_sql_and_stop_cleanly(deployed: Deployed) -> None:
    for unit in UNITS:
        deployed.start(unit)
    deployed.wait_for("chiplog-collector", "receiver listens for events at")
    deployed.wait_for("chiplog-agent", "answers")

    assert train(deployed) == ""
    rows_when(
        deployed,
        "SELECT count(*) AS n, count(DISTINCT (key, step)) AS different FROM metrics WHERE run_id = 'deployed'",
        [{"n": 2 * STEPS, "different": 2 * STEPS}],
    )
    rows_when(deployed, "SELECT state FROM runs WHERE run_id = 'deployed'", [{"state": "finished"}])

    status = [CHIPLOG, "status"]  # which waits for its event for 5 s

    def is_well() -> bool:
        asked = subprocess.run(status, env=environment_of_a_user(deployed), capture_output=True, text=True)
        return asked.returncode == 0 and "in SQL after" in asked.stdout

    wait_until(is_well, "an event of `chiplog status` in SQL")

    for unit in reversed(UNITS):
        code, left = deployed.stop(unit)
        assert (code, left) == (0, []), deployed.said(unit)
    assert "Traceback" not in deployed.said("chiplog-agent") + deployed.said("chiplog-collector")

    index = Path(deployed.environments["chiplog-collector"]["CHIPLOG_DIR"]) / "collector" / "index.duckdb"
    with duckdb.connect(str(index), read_only=True) as connection:
        ask = connection.execute
        assert ask("SELECT produced - stored, lost, pending FROM completeness").fetchall() == [(0, 0, 0)]
        assert ask("SELECT line FROM console").fetchall() == [("said on the console",)]
        assert ask("SELECT count(*) FROM system_samples").fetchone() != (0,)


@pytest.mark.full
def test_units_keep_what_ranks_log_while_the_collector_is_stopped(deployed: Deployed) -> None:
    deployed.start("chiplog-agent")
    deployed.wait_for("chiplog-agent", "serves")
    assert train(deployed) == ""
    assert deployed.stop("chiplog-agent") == (0, [])

    for unit in UNITS:
        deployed.start(unit)
    query = "SELECT label, stored = produced AS whole, lost, pending FROM completeness WHERE run_id = 'deployed'"
    rows_when(deployed, query, [{"label": "rank0", "whole": True, "lost": 0, "pending": 0}])
    for unit in reversed(UNITS):
        assert deployed.stop(unit) == (0, [])


def test_a_rank_leaves_the_starting_of_an_agent_to_systemd(deployed: Deployed) -> None:
    said = train(deployed)
    assert "cannot be reached" in said and len(said.splitlines()) == 1, said
    directory = Path(deployed.environments["chiplog-agent"]["CHIPLOG_DIR"])
    assert not (directory / "agent").exists()
    assert len(list_journals(directory / "journals")) == 2, "the journals of events and of lines wait for the unit"


@pytest.mark.parametrize(("unit", "variable"), [(unit, "CHIPLOG_COLLECTOR") for unit in UNITS])
def test_bad_configuration_ends_a_unit_with_the_exit_code_that_prevents_restarts(
    deployed: Deployed, unit: str, variable: str
) -> None:
    deployed.environments[unit][variable] = "tcp://nowhere"
    deployed.start(unit)
    assert deployed.running[unit].wait(WAIT_S) == int(settings_of(unit)["RestartPreventExitStatus"])
    said = deployed.said(unit)
    assert "tcp://nowhere" in said
    assert len(said.splitlines()) == 1, said


def test_collector_refuses_an_address_that_other_hosts_reach(deployed: Deployed) -> None:
    deployed.environments["chiplog-collector"]["CHIPLOG_COLLECTOR"] = "tcp://0.0.0.0:4100"
    deployed.start("chiplog-collector")
    assert deployed.running["chiplog-collector"].wait(WAIT_S) == 2
    assert "needs CURVE keys" in deployed.said("chiplog-collector")


@pytest.mark.parametrize("unit", UNITS)
def test_unit_paths_agree_with_the_env_file(unit: str) -> None:
    settings, environment = settings_of(unit), env_of(unit)
    assert environment["CHIPLOG_DIR"] == f"/var/lib/{settings['StateDirectory']}"
    if "CHIPLOG_AGENT" in environment:
        assert environment["CHIPLOG_AGENT"].startswith(f"ipc:///run/{settings['RuntimeDirectory']}/")
    used = set(re.findall(r"\$\{?(\w+)", settings["ExecStart"]))
    assert used <= set(environment), "systemd expands what the env file lacks to nothing"
    assert settings["StateDirectoryMode"] == "0700"


def test_agent_unit_leaves_the_gpus_reachable() -> None:
    settings = settings_of("chiplog-agent")
    closing = {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow", "PrivateUsers", "ProtectProc"}
    assert not closing & set(settings)


def test_readme_of_deploy_names_every_file() -> None:
    text = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.iterdir():
        assert path.name == "README.md" or path.name in text, f"{path.name} is not in deploy/README.md"


@needs("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    copies = []
    for unit in UNITS:
        copy = tmp_path / f"{unit}.service"
        text = (DEPLOY / copy.name).read_text()
        copy.write_text(text.replace("/opt/chiplog/bin/chiplog", str(CHIPLOG)))  # it checks that the program is there
        copies.append(copy)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies], capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
