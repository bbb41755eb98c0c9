"""A configured agent is killed: the embedded agent in its place delivers to the same collector only."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog_cli.commands.run import status
from chiplog_cli.root import main
from chiplog_client import daemons
from chiplog_client.client import NoDataError, connect
from chiplog_schemas.process.file_lock import lock_note
from chiplog_schemas.transport.collector_memory import remembered_collector
from tests.support.exported_run import export_of_whole
from tests.support.hosts import Centre, Host
from tests.support.node import end_daemons
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

RANK = """
import sys, chiplog
run = chiplog.init(run_id="r", capture_console=False)
step = 0
for line in sys.stdin:
    for _ in range(int(line)):
        run.log({"x": float(step)}, step=step)
        step += 1
run.finish()
"""


class Site(Host):
    """A node whose agent has keys that its ranks do not know of."""

    @property
    def key_directory(self) -> Path:
        return self.root.with_name("operator-keys")

    def start_service(self, address: str) -> None:
        self.start_at(address, "--keys", str(self.key_directory), "--node", "site-agent")
        wait_until(lambda: remembered_collector(self.place.agent), "an agent that has its settings")

    def start_rank(self) -> "subprocess.Popen[str]":
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
        return subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**environ, "CHIPLOG_DIR": str(self.root)},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def site(tmp_path: Path, centre: Centre, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    found = Site(tmp_path / "site")
    centre.admit(found, "agent", "--node", "site-agent")
    for name in ("CHIPLOG_DIR", "CHIPLOG_COLLECTOR", "CHIPLOG_AGENT"):
        monkeypatch.delenv(name, raising=False)
    yield found
    found.stop()
    end_daemons(found.place)


def tell(rank: "subprocess.Popen[str]", n_values: int) -> None:
    assert rank.stdin is not None
    rank.stdin.write(f"{n_values}\n")
    rank.stdin.flush()


def numbers(count: int) -> list[float]:
    return [float(step) for step in range(count)]


@proves(
    "configured-collector-kept", "an agent in place of a configured one delivers to the same collector", condition=False
)
@proves("embedded-daemon-leaves-for-configured", "a configured agent replaces one that stood in for it")
def test_all_values_of_a_rank_whose_agent_is_killed_are_at_the_configured_collector(centre: Centre, site: Site) -> None:
    site.start_service(centre.address)
    rank = site.start_rank()
    tell(rank, 100)
    wait_until(lambda: centre.stored() == numbers(100), "values by the configured agent")
    site.kill_agent()
    tell(rank, 100)
    wait_until(lambda: centre.stored() == numbers(200), "values from the agent in its place")
    lock = daemons.lock_path(site.place, daemons.AGENT)
    assert lock_note(lock) == "embedded"
    site.start_service(centre.address)  # returns once this agent holds the lock
    assert site.agent is not None
    assert rank.poll() is None, "it did not wait for the end of the rank"
    tell(rank, 50)
    _, err = rank.communicate(timeout=WAIT_S)
    wait_until(lambda: centre.stored() == numbers(250), "values by the configured agent again")
    assert (rank.returncode, err) == (0, "")
    assert not site.place.collector.exists(), "no second log"


def test_a_collector_of_an_operator_replaces_an_embedded_one(centre: Centre) -> None:
    centre.stop_collector()
    embedded = centre._start("chiplog_collector", "--embedded")
    wait_until(lambda: daemons.daemon_pid(centre.place, daemons.COLLECTOR) == embedded.pid, "an embedded collector")
    wait_until(lambda: daemons.socket_path(centre.place, daemons.COLLECTOR).exists(), "one that can be stopped")
    centre.start_collector()
    assert centre.collector is not None
    assert daemons.daemon_pid(centre.place, daemons.COLLECTOR) == centre.collector.pid
    embedded.wait(WAIT_S)


@proves(
    "up-keeps-configured-collector", "`chiplog up` starts no collector where another one is configured", condition=False
)
@proves(
    "collector-elsewhere-not-awaited",
    "a reader does not wait for a collector where another one is configured",
    part=" and not daemons.goes_elsewhere(where)",
)
@proves(
    "change-starts-no-second-collector", "a change starts no collector where another one is configured", condition=False
)
@proves("import-keeps-configured-collector", "an import names the configured collector", condition=False)
def test_no_command_starts_a_collector_where_another_one_is_configured(
    centre: Centre, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start_service(centre.address)
    site.kill_agent()
    (tmp_path / "exports").mkdir()
    exported = export_of_whole(tmp_path / "exports")
    line = f"what is logged under {site.root} goes to the collector {centre.address}"
    monkeypatch.setenv("CHIPLOG_COLLECTOR", "tcp://127.0.0.1:9")
    assert main(["up", "--dir", str(site.root)]) == 0
    monkeypatch.delenv("CHIPLOG_COLLECTOR", raising=False)
    said = capsys.readouterr()
    assert line in said.err and "collector started" not in said.out and "agent started" in said.out
    site.log(0.0, 1.0)
    wait_until(lambda: centre.stored() == [0.0, 1.0], "values by the agent of `chiplog up`")
    monkeypatch.setattr(daemons, "COMING_UP_MAX_S", float("inf"))  # an agent that starts a collector is awaited
    with pytest.raises(NoDataError, match="goes to the collector"):
        connect(dir=site.root)
    assert main(["import", str(exported), "--dir", str(site.root)]) == 1
    assert line in capsys.readouterr().err
    main(["doctor", "--dir", str(site.root), "--format", "csv"])
    main(["status", "--dir", str(site.root), "--no-canary", "--format", "csv"])
    assert capsys.readouterr().out.count(line) == 2
    daemons.stop(site.place, daemons.AGENT)
    (site.place.collector / "log").mkdir(parents=True)
    (site.place.collector / "log" / f"{0:020d}.seg").touch()  # of a time before
    with pytest.raises(Exception, match="goes to the collector"):
        from chiplog_client import client

        client._start_collector(site.place)


def test_status_is_well_where_the_agent_delivers_elsewhere_and_bad_once_it_cannot(
    centre: Centre, site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This shell has neither CHIPLOG_COLLECTOR nor a reader's key, and then such a key."""

    def ask() -> tuple[int, dict[str, Any]]:
        code = main(["status", "--dir", str(site.root), "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    monkeypatch.setattr(status, "CANARY_WAIT_S", 25.0)  # less than a query may take
    site.start_service(centre.address)
    wait_until(lambda: ask()[1]["agent_link_state"] == "open", "an agent that delivers")
    code, facts = ask()
    assert (code, facts["collector_pid"]) == (0, None), facts
    begin, _, reason = facts["canary"].partition("; not looked up in SQL: ")
    assert begin == f"acknowledged by the agent; {facts['agent_link']}"
    assert "requires keys" in reason
    monkeypatch.setenv("CHIPLOG_KEYS", str(site.key_directory))
    centre.admit(site, "reader")
    capsys.readouterr()
    wait_until(lambda: "in SQL after" in ask()[1]["canary"], "a reader that is let in")
    assert ask()[0] == 0
    monkeypatch.delenv("CHIPLOG_KEYS")
    monkeypatch.setattr(status, "CANARY_WAIT_S", 2.0)
    centre.stop_collector()
    wait_until(lambda: ask()[1]["agent_link_state"] == "closed", "an agent that cannot deliver")
    code, facts = ask()
    assert code == 1
    assert facts["canary"].startswith("did not arrive within 2 s: ")


def test_a_new_collector_wins_and_is_remembered_with_a_line_that_names_the_former(centre: Centre, site: Site) -> None:
    site.start_service(centre.address)
    site.stop_agent()
    site.start_agent("--collector", "ipc:///elsewhere.sock")

    def is_new() -> bool:
        kept = remembered_collector(site.place.agent)
        return kept is not None and kept.address == "ipc:///elsewhere.sock"

    wait_until(is_new, "the new one")
    line = f"events go to ipc:///elsewhere.sock now, with all that wait; the spool was for {centre.address}"
    assert line in site.output()
    site.stop_agent()
    site.start_agent("--collector", "local")
    wait_until(lambda: remembered_collector(site.place.agent) is None, "the collector of the directory")


@pytest.mark.full
def test_the_collector_of_a_trainings_environment_is_kept_until_the_spool_is_delivered(
    centre: Centre, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre.stop_collector()
    monkeypatch.setenv("CHIPLOG_COLLECTOR", centre.place.collector_address)
    pid = daemons.start(site.place, daemons.AGENT, ["--embedded", "--no-stats"])
    wait_until(lambda: remembered_collector(site.place.agent), "the collector of the environment")
    kept = remembered_collector(site.place.agent)
    assert kept is not None and not kept.is_configured
    site.log(1.0)
    wait_until(lambda: not list(site.place.journals.iterdir()), "an agent that has everything")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemons.daemon_pid(site.place, daemons.AGENT) != pid, "the end of the agent")
    monkeypatch.delenv("CHIPLOG_COLLECTOR")
    daemons.start(site.place, daemons.AGENT, ["--embedded", "--no-stats"])
    daemons.stop(site.place, daemons.AGENT)
    assert remembered_collector(site.place.agent) == kept, "its values still wait"
    assert not site.place.collector.exists()
    centre.start_collector()
    daemons.start(site.place, daemons.AGENT, ["--embedded", "--no-stats"])
    wait_until(lambda: remembered_collector(site.place.agent) is None, "an agent that has delivered everything")
    assert centre.stored() == [1.0]
