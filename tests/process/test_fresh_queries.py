"""A query right after `init()` waits for the first collector, and one right after `finish()` has the whole run."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_client import pending_delivery
from chiplog_client.client import connect
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.watermark import Watermark
from chiplog_schemas.transport.collector_memory import RememberedCollector, remember_collector
from tests.support.exported_run import make_place
from tests.support.marks import everyday
from tests.support.node import Node, end_daemons
from tests.support.safeguard import proves
from tests.support.served_database import served_database
from tests.support.waiting import WAIT_S


def run(root: Path, program: str, *arguments: int) -> list[str]:
    """Run a program with its own CHIPLOG_DIR, and return the lines that it prints."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env={**environ, "CHIPLOG_DIR": str(root)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    return done.stdout.splitlines()


@proves("live-journals-count", "a process that has just called `init()` counts as data", condition=False)
def test_a_query_within_a_second_of_init_waits_for_the_collector(tmp_path: Path) -> None:
    root = tmp_path / "chiplog"
    program = """
        import chiplog
        run = chiplog.init(project="p")
        with chiplog.connect() as client:
            print(client.sql("SELECT 1 AS a").rows())
        run.finish()
    """
    try:
        assert run(root, program) == ["[{'a': 1}]"]
    finally:
        end_daemons(paths_for_root(root))


@pytest.mark.parametrize("n_runs", everyday(1, [6, 20]))
def test_a_query_after_finish_has_all_rows_from_this_process_and_from_another(n_runs: int, tmp_path: Path) -> None:
    root = tmp_path / "chiplog"
    program = """
        import subprocess, sys
        import chiplog
        other = "import chiplog; print(chiplog.connect().sql('SELECT count(*) AS n FROM metrics').rows()[0]['n'])"
        for number in range(1, int(sys.argv[1]) + 1):
            run = chiplog.init(project="p")
            for step in range(10):
                run.log({"a": step})
            run.finish()
            if number % 5:
                with chiplog.connect() as client:
                    print(client.sql("SELECT count(*) AS n FROM metrics").rows()[0]["n"], flush=True)
            else:
                subprocess.run([sys.executable, "-c", other], check=True)
    """
    try:
        assert run(root, program, n_runs) == [str(10 * number) for number in range(1, n_runs + 1)]
        end_daemons(paths_for_root(root))  # the database is there, and no collector
        assert run(root, program, 2) == [str(10 * number) for number in (n_runs + 1, n_runs + 2)]
    finally:
        end_daemons(paths_for_root(root))


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Node]:
    """A collector, and an agent that a signal has stopped, so that the journal of a finished run stays."""
    node = Node(tmp_path / "chiplog").start()
    assert node.agent is not None
    node.agent.send_signal(signal.SIGSTOP)
    run(node.root, "import chiplog; run = chiplog.init(); run.log({'a': 1.0}); run.finish()")
    yield node
    node.agent.send_signal(signal.SIGCONT)
    node.stop()


def n_values(node: Node) -> int:
    with connect(dir=node.root) as client:
        return int(client.sql("SELECT count(*) AS n FROM metrics").rows()[0]["n"])


@proves(
    "finished-run-awaited",
    "a query waits for the end of a run on its way to the collector of this directory",
    condition=False,
)
def test_a_query_waits_for_a_finished_run_and_names_what_is_missing(
    stopped: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pending_delivery, "FINISHED_WAIT_S", 0.1)
    assert n_values(stopped) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("chiplog: 1 journal of an ended process waits; the answers lack it until then")
    monkeypatch.setattr(pending_delivery, "FINISHED_WAIT_S", WAIT_S)
    assert stopped.agent is not None
    stopped.agent.send_signal(signal.SIGCONT)
    assert n_values(stopped) == 1
    assert capsys.readouterr().err == ""


@proves("run-of-elsewhere-not-awaited", "no query waits for a run on its way to a collector elsewhere", condition=False)
def test_a_query_waits_for_no_run_on_its_way_to_a_collector_elsewhere(
    stopped: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pending_delivery, "FINISHED_WAIT_S", 0.1)
    elsewhere = RememberedCollector("tcp://192.0.2.1:9", "", "", is_configured=False)
    remember_collector(stopped.place.agent, elsewhere)
    assert n_values(stopped) == 0
    assert "waits" not in capsys.readouterr().err


@proves(
    "finished-run-applied",
    "a query waits until the database has a finished run that the collector has",
    condition=False,
)
def test_a_query_waits_until_the_index_has_what_the_collector_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A query shares a flush that has just begun, which lacks what the collector acknowledged since."""
    place = make_place(tmp_path)
    place.journals.mkdir(parents=True)  # as if a run had just ended
    monkeypatch.setattr(pending_delivery, "FINISHED_WAIT_S", 0.1)
    with served_database(place) as database:
        [position] = database.execute("SELECT next_number FROM base.position").fetchone() or (0,)
        synced = Watermark(place.collector / "synced", writable=True)
        for ahead, expected in (
            (0, ""),
            (7, "chiplog: 7 records of the log are not in the database yet"),
        ):
            synced.set(position + ahead)
            connect(dir=place.root).close()
            error = capsys.readouterr().err
            assert error.startswith(expected) and bool(error) == bool(expected)
