"""What the collector knows of this process: its attempt, and whether the run is the one that it asked for."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import chiplog
from chiplog.recording.resume import collector_lookup
from chiplog.recording.resume.collector_lookup import AttemptLookup, watch_demand
from chiplog_schemas.paths import Paths, paths_for_root
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


@proves("attempt-of-collector", "a run's attempt is the collector's number", value="0")
def test_the_attempt_is_the_collectors_number_once_it_is_known(node) -> None:
    for attempt in range(2):
        run = chiplog.init(run_id="again", label="trainer", dir=node.root, capture_console=False)
        assert (run.attempt, run.restart_count) == (None, 0), "nothing waits for the answer"
        wait_until(lambda run=run: run.attempt is not None, "the collector's answer")
        assert run.attempt == attempt
        run.finish()
    rows = node.until(
        "SELECT attempt FROM labels WHERE run_id = 'again' AND state = 'finished' ORDER BY ALL", lambda r: len(r) == 2
    )
    assert rows[-1]["attempt"] == 1


DEMANDS = """
import subprocess, sys
import chiplog
run = chiplog.init(run_id=sys.argv[1], resume=sys.argv[2], capture_console=False)
run.log({"x": 2.0})
code = "import chiplog; run = chiplog.init(capture_console=False); run.log({'x': 3.0}); run.finish()"
subprocess.run([sys.executable, "-c", code], check=True)
run.finish()
"""


@proves("child-follows-parents-demand", "a child follows the demand of its parent")
def test_a_demand_that_is_not_met_is_kept_under_another_name_with_one_line_also_for_children(node: Node) -> None:
    with chiplog.init(run_id="there", dir=node.root, capture_console=False) as run:
        run.log({"x": 1.0})
    node.until("SELECT count(*) AS n FROM runs", lambda rows: rows[0]["n"] == 1)
    lines = []
    for run_id, demand in (("there", "never"), ("nowhere", "must"), ("there", "must"), ("new", "never")):
        done = subprocess.run(
            [sys.executable, "-c", DEMANDS, run_id, demand],
            env=os.environ | {"CHIPLOG_DIR": str(node.root)},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, done.stderr
        lines.append([line for line in done.stderr.splitlines() if "resume=" in line])
    assert [len(said) for said in lines] == [1, 1, 0, 0], lines
    assert "there-2" in lines[0][0] and "nowhere-2" in lines[1][0]
    node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"] == 9)
    found = node.sql("SELECT run_id, list(value ORDER BY value) AS x FROM metrics GROUP BY ALL ORDER BY ALL")
    assert {row["run_id"]: row["x"] for row in found} == {
        "new": [2.0, 3.0],
        "nowhere-2": [2.0, 3.0],
        "there": [1.0, 2.0, 3.0],
        "there-2": [2.0, 3.0],
    }
    refused = node.sql("SELECT run_id, level FROM events WHERE kind = 'resume_refused' ORDER BY ALL")
    assert [(row["run_id"], row["level"]) for row in refused] == [("nowhere-2", "error"), ("there-2", "error")]


@pytest.fixture
def where(chiplog_dir: Path) -> Paths:
    return paths_for_root(chiplog_dir)


def test_without_a_collector_the_attempt_is_unknown_and_nothing_is_made_or_started(where: Paths) -> None:
    lookup = AttemptLookup(where)
    assert lookup.read("rank0", 1) is None
    wait_until(lambda: "chiplog-attempt" not in {thread.name for thread in threading.enumerate()}, "the answer")
    assert lookup.read("rank0", 1) is None
    assert not where.root.exists()


def test_a_loop_that_reads_the_attempt_asks_once_in_a_while(where: Paths) -> None:
    lookup = AttemptLookup(where)
    asking: set[threading.Thread] = set()

    def note(*event: object) -> None:
        thread = threading.current_thread()
        if thread.name == "chiplog-attempt":
            asking.add(thread)

    threading.setprofile(note)
    try:
        for _ in range(100):
            lookup.read("rank0", 7)
        wait_until(lambda: asking and not any(thread.is_alive() for thread in asking), "the answer")
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    assert len(asking) == 1


def test_a_demand_that_no_collector_can_judge_is_not_judged(where: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector_lookup, "_DEMAND_PAUSES_S", (0.01, 0.01))
    said: list[str] = []
    watch_demand(where, "r", "rank0", 1, "must", said.append)
    wait_until(lambda: "chiplog-demand" not in {thread.name for thread in threading.enumerate()}, "the last try")
    assert said == []
    assert not where.root.exists()
