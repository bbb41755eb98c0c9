"""SIGKILL of rank, agent, receiver and index at random moments: according to an oracle, nothing is lost or duplicated.

Real processes, real signals. One rank of a round is killed while it logs, at the same time as daemons; the others when
no daemon is killed any more. `make test` kills 15 and more in one round, a soak continues for its share of the time.
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
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from tests.support.index_process import index_of
from tests.support.oracle import ORACLE, compare
from tests.support.rounds import Rounds
from tests.support.safeguard import proves

KILLS = 12  # of daemons in one round, in addition to its three ranks …
LOGGED_BYTES = 4_000  # … one of which is killed together with daemons once it has logged this much
SETTLE_S = 180.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Paths]:
    root = tmp_path / "chiplog"
    monkeypatch.setenv("CHIPLOG_DIR", str(root))
    place = paths_for_root(root)
    yield place
    for directory in (place.agent, place.collector):
        end(lock_holder_pid(directory / "lock"), signal.SIGTERM)


def end(pid: int, number: int) -> None:
    """Signal a daemon; it may be gone already."""
    if pid > 0:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it ended by itself between the check and the kill


def start_rank(file: Path, label: str, events: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-P",
        ORACLE,
        str(file),
        "--label",
        label,
        "--events",
        str(events),
        "--pause-s",
        "0.001",
    ]
    return subprocess.Popen(command)


def settled(place: Paths, labels: list[str]) -> bool:
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
        except (chiplog.QueryError, chiplog.NoDataError):
            pass  # the collector is being restarted
        time.sleep(0.2)
    return False


def pid_of(place: Paths, victim: str) -> int:
    """Return the PID of a daemon; 0 while it is not there."""
    if victim == "index":
        return index_of(place)
    return lock_holder_pid((place.agent if victim == "agent" else place.collector) / "lock")


def kill_some(place: Paths, chooser: random.Random, rank: int = 0) -> Counter[str]:
    """Kill one to three of the running daemons at the same time, and a rank if one is given; return the killed ones."""
    time.sleep(chooser.uniform(0.05, 0.8))
    victims = chooser.sample(["agent", "receiver", "index"], k=chooser.choice([1, 1, 2, 3]))
    killed: Counter[str] = Counter()
    there = [(victim, pid_of(place, victim)) for victim in victims]
    if rank and any(pid > 0 for _, pid in there):
        there.insert(chooser.randrange(len(there) + 1), ("rank", rank))
    for victim, pid in there:
        if pid > 0:
            end(pid, signal.SIGKILL)
            killed[victim] += 1
    return killed


def one_round(place: Paths, directory: Path, seed: int) -> Counter[str]:
    """Let three ranks log while daemons are killed, kill the ranks, and compare. Returns what was killed."""
    directory.mkdir()
    chooser = random.Random(seed)
    labels = [f"{seed}-rank{rank}" for rank in range(3)]
    files = {label: directory / f"{label}.oracle" for label in labels}
    ranks = [start_rank(file, label, 1_000_000) for label, file in files.items()]
    kills: Counter[str] = Counter()
    first, *others = ranks  # the first is not replaced: its events until then must suffice
    logged = files[labels[0]]
    while (n_daemons := kills.total() - kills["rank"]) < KILLS or not kills["rank"]:
        assert kills["rank"] or first.poll() is None, (seed, "it ended by itself")
        may_go = not kills["rank"] and logged.exists() and logged.stat().st_size > LOGGED_BYTES
        goes = may_go and (chooser.random() < 0.3 or n_daemons >= KILLS)
        kills += kill_some(place, chooser, first.pid if goes else 0)
    first.wait()
    # The others go last, each at a random moment, with its agent or without, and leave what they had.
    for process in others:
        time.sleep(chooser.uniform(0.0, 0.3))
        agent = pid_of(place, "agent") if chooser.random() < 0.7 else 0
        process.send_signal(signal.SIGKILL)
        if agent > 0:
            end(agent, signal.SIGKILL)
            kills["agent"] += 1
        process.wait()
        kills["rank"] += 1
    last = f"{seed}-last"
    start_rank(directory / "last.oracle", last, 10).wait()  # a rank on this node starts an agent again
    assert settled(place, [*labels, last]), f"seed {seed}: some label never became complete"
    with chiplog.connect(dir=place.root) as client:
        for label, file in files.items():
            rows = client.sql("SELECT step, value FROM metrics WHERE label = ? AND key = 'value'", [label]).rows()
            verdict = compare(file, rows)
            assert verdict.ok, (seed, label, verdict)
            assert len(verdict.extra) <= 1, (seed, label, verdict)
            assert verdict.expected > 100
    return kills


@proves("events-stored-once", "what two hops send twice becomes rows once", condition=True)
@proves(
    "acknowledged-after-sync",
    "the rank keeps a record until the agent has synced it",
    new="...\n"
    "self._act(self._receiver.acknowledge(sender, last + 1), now)\n"
    "self._write_after = now + 0.3 if self._write_after < now - 0.3 else self._write_after",
)
@proves("orphan-journal-delivered", "an agent delivers what a dead rank left")
@pytest.mark.promise(1)
@pytest.mark.timeout(900)
@pytest.mark.soak(6)
def test_nothing_is_lost_or_doubled_when_any_process_is_killed_at_any_moment(
    place: Paths, tmp_path: Path, rounds: Rounds
) -> None:
    for seed in rounds(1):
        for victim, n in one_round(place, tmp_path / f"round{seed}", seed).items():
            rounds.count("kills", n)
            rounds.count(f"of {victim}", n)
