"""SIGKILL of rank, agent, receiver and index at random moments: by an oracle, nothing is lost and nothing doubled.

Real processes, real signals. The seed is printed; CHIPLOG_FAULT_SEED repeats it, CHIPLOG_FAULT_KILLS sets the count of
one round. With CHIPLOG_SOAK_MINUTES rounds follow each other for that long, and the count reached is printed.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog_schemas.locks import holder_of
from chiplog_schemas.places import Places, places
from tests.fault.oracle import compare

ORACLE = Path(__file__).with_name("oracle.py")
KILLS = int(os.environ.get("CHIPLOG_FAULT_KILLS", "12"))
SOAK_MINUTES = float(os.environ.get("CHIPLOG_SOAK_MINUTES", "0"))
SETTLE_S = 60.0


pytestmark = pytest.mark.timeout(120 + 90 * SOAK_MINUTES)


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


def kill_once(place: Places, chooser: random.Random) -> str:
    """Kill one process of the pipeline at a random moment; return which, or nothing if it was not there."""
    time.sleep(chooser.uniform(0.05, 0.8))
    victim = chooser.choice(["agent", "receiver", "index"])
    if victim == "index":
        pid = index_of(place)
    else:
        pid = holder_of((place.agent if victim == "agent" else place.collector) / "lock")
    end(pid, signal.SIGKILL)
    return victim if pid > 0 else ""


def one_round(place: Places, directory: Path, seed: int) -> Counter[str]:
    """Let three ranks log while daemons are killed, kill the ranks, and compare. Returns what was killed."""
    print(f"seed {seed}")
    directory.mkdir()
    chooser = random.Random(seed)
    labels = [f"{seed}-rank{rank}" for rank in range(3)]
    files = {label: directory / f"{label}.oracle" for label in labels}
    ranks = [start_rank(file, label, 1_000_000) for label, file in files.items()]
    kills = Counter(kill_once(place, chooser) for _ in range(KILLS))
    for process in ranks:  # the ranks go last, at a random moment each, and leave what no agent has yet
        time.sleep(chooser.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills["rank"] += 1
    last = f"{seed}-last"
    start_rank(directory / "last.oracle", last, 10).wait()  # somebody on this node starts an agent again
    assert settled(place, [*labels, last]), f"seed {seed}: some label never became complete"
    with chiplog.connect(dir=place.root) as client:
        for label, file in files.items():
            rows = client.sql("SELECT step, value FROM metrics WHERE label = ? AND key = 'value'", [label]).rows()
            verdict = compare(file, rows)
            assert verdict.ok, (seed, label, verdict)
            assert len(verdict.extra) <= 1, (seed, label, verdict)
            assert verdict.expected > 100
    del kills[""]
    return kills


def test_nothing_is_lost_or_doubled_when_any_process_is_killed_at_any_moment(place: Places, tmp_path: Path) -> None:
    seed = int(os.environ.get("CHIPLOG_FAULT_SEED", str(time.time_ns() % 1_000_000)))
    end_at = time.monotonic() + 60 * SOAK_MINUTES
    kills = one_round(place, tmp_path / "round0", seed)
    rounds = 1
    while time.monotonic() < end_at:
        kills += one_round(place, tmp_path / f"round{rounds}", seed + rounds)
        rounds += 1
    print(f"{rounds} rounds, {kills.total()} kills: {dict(kills)}; 0 lost, 0 doubled")
