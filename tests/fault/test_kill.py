"""SIGKILL of rank, agent, receiver and index at random moments: by an oracle, nothing is lost and nothing doubled.

Real processes, real signals. The seed is printed; CHIPLOG_FAULT_SEED repeats it, CHIPLOG_FAULT_KILLS sets the count.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog_schemas.locks import holder_of
from chiplog_schemas.places import Places, places
from tests.fault.oracle import compare

ORACLE = Path(__file__).with_name("oracle.py")
KILLS = int(os.environ.get("CHIPLOG_FAULT_KILLS", "12"))
SETTLE_S = 60.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    root = tmp_path / "chiplog"
    monkeypatch.setenv("CHIPLOG_DIR", str(root))
    place = places(root)
    yield place
    for directory in (place.agent, place.collector):
        end(holder_of(directory / "lock"), signal.SIGTERM)


def end(pid: int, number: int) -> None:
    """Signal a daemon of ours; it may be gone already."""
    if pid > 0:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it left by itself between the look and the kill


def index_of(place: Places) -> int:
    """Return the PID of the index process of this directory."""
    receiver = holder_of(place.collector / "lock")
    try:
        children = Path(f"/proc/{receiver}/task/{receiver}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0


def start_rank(file: Path, label: str, events: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ORACLE), str(file), "--label", label, "--events", str(events), "--pause-s", "0.001"]
    return subprocess.Popen(command)


def settled(place: Places, labels: list[str]) -> bool:
    """Wait until every label is complete in SQL."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        try:
            with chiplog.connect(dir=place.root) as client:
                rows = client.sql(
                    "SELECT l.label FROM labels l JOIN completeness c USING (run_id, label, attempt) "
                    "WHERE l.state <> 'running' AND c.pending = 0 AND c.lost = 0"
                ).rows()
            if {row["label"] for row in rows} >= set(labels):
                return True
        except (chiplog.client.QueryError, chiplog.client.NoDataError):
            pass  # the collector is being restarted
        time.sleep(0.2)
    return False


def test_nothing_is_lost_or_doubled_when_any_process_is_killed_at_any_moment(place: Places, tmp_path: Path) -> None:
    seed = int(os.environ.get("CHIPLOG_FAULT_SEED", str(time.time_ns() % 1_000_000)))
    print(f"seed {seed}")
    chooser = random.Random(seed)
    labels = ["rank0", "rank1", "rank2"]
    files = {label: tmp_path / f"{label}.oracle" for label in labels}
    ranks = {label: start_rank(files[label], label, 1_000_000) for label in labels}
    kills = {"agent": 0, "receiver": 0, "index": 0}
    for _ in range(KILLS):
        time.sleep(chooser.uniform(0.05, 0.8))
        victim = chooser.choice(list(kills))
        pid = {
            "agent": lambda: holder_of(place.agent / "lock"),
            "receiver": lambda: holder_of(place.collector / "lock"),
            "index": lambda: index_of(place),
        }[victim]()
        kills[victim] += pid > 0
        end(pid, signal.SIGKILL)
    for process in ranks.values():  # the ranks go last, at a random moment each, and leave what no agent has yet
        time.sleep(chooser.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
    start_rank(tmp_path / "last.oracle", "last", 10).wait()  # somebody on this node starts an agent again
    assert settled(place, [*labels, "last"]), "some label never became complete"
    with chiplog.connect(dir=place.root) as client:
        for label, file in files.items():
            rows = client.sql("SELECT step, value FROM metrics WHERE label = ? AND key = 'value'", [label]).rows()
            verdict = compare(file, rows)
            print(label, "expected", verdict.expected, "extra", len(verdict.extra), "kills", kills)
            assert verdict.ok, verdict
            assert len(verdict.extra) <= 1
            assert verdict.expected > 100
