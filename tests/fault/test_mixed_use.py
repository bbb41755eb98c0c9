"""Signals, threads, pools, readers and tmp cleaners at once: nothing is lost undeclared, and no daemon ends.

The ranks (`rank_of_mixed_use.py`) do things that have lost values before. Readers keep a query of about two seconds
running, so that each checkpoint meets one. A cleaner removes locks and sockets of running processes. A soak repeats
this.
"""

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from tests.fault.rank_of_mixed_use import KINDS
from tests.support.index_process import index_of
from tests.support.node import end_daemons
from tests.support.oracle import compare
from tests.support.rounds import SOAK_MINUTES, Rounds
from tests.support.waiting import WAIT_S, wait_until

ROUND_S = 240.0 if SOAK_MINUTES else 10.0
SLOW_QUERY = "SELECT sum(hash(a.range * b.range)) FROM range(10000) a, range(10000) b"  # about a second
UNSETTLED = (
    "SELECT label, state, produced, stored, lost, pending, pid, reason FROM completeness "
    "JOIN labels USING (run_id, label, attempt) WHERE pending IS NULL OR pending > 0 OR state = 'running'"
)


class Readers:
    """Queries that never stop: slow ones, and those of users."""

    QUERIES = (
        SLOW_QUERY,
        "SELECT * FROM runs",
        "SELECT label, max(step) FROM metrics GROUP BY label",
        "FROM completeness",
    )

    def __init__(self, root: Path) -> None:
        self._root = root
        self._is_over = threading.Event()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._read, args=(query,)) for query in self.QUERIES]

    def __enter__(self) -> "Readers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _read(self, query: str) -> None:
        while not self._is_over.is_set():
            try:
                with chiplog.connect(dir=self._root) as client:
                    while not self._is_over.wait(0.3):
                        client.sql(query)
                        self.counts["queries"] += 1
            except chiplog.QueryError as error:
                self.errors.append(f"{query[:40]}: {error.kind} {error.message}")


class Cleaner:
    """Removes what an age-based cleaner of temporary files would: locks of live journals, sockets of live daemons."""

    def __init__(self, place: Paths, chooser: random.Random) -> None:
        self._place = place
        self._chooser = chooser
        self.counts: Counter[str] = Counter()

    def clean(self) -> None:
        locks = list(self._place.journals.glob("*/lock"))
        sockets = [path for path in self._place.run.iterdir() if path.is_socket()]
        for kind, found in (("locks", locks), ("sockets", sockets)):
            if found:
                self._chooser.choice(found).unlink(missing_ok=True)
                self.counts[f"removed {kind}"] += 1


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Paths]:
    """A node whose daemons stay: those that ranks start leave when no rank has run for a while, as between rounds."""
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "chiplog"))
    place = paths_for_root(tmp_path / "chiplog")
    subprocess.run([sys.executable, "-m", "chiplog_cli", "up"], check=True)
    yield place
    end_daemons(place)


def daemons(place: Paths) -> dict[str, int]:
    receiver = lock_holder_pid(place.collector / "lock")
    return {"agent": lock_holder_pid(place.agent / "lock"), "receiver": receiver, "index": index_of(place)}


def start(kind: str, folder: Path, seconds: float, name: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.fault.rank_of_mixed_use", kind, str(folder), str(seconds), name]
    return subprocess.Popen(command)


def one_round(place: Paths, folder: Path, seed: int, counts: Counter[str]) -> None:
    folder.mkdir()
    chooser = random.Random(seed)
    cleaner = Cleaner(place, chooser)
    ranks = {kind: start(kind, folder, ROUND_S, f"{seed}-{kind}") for kind in KINDS}
    wait_until(lambda: all(daemons(place).values()), "the daemons to start")
    before = daemons(place)
    end = time.monotonic() + ROUND_S
    n_killed = 0
    with Readers(place.root) as readers:
        while time.monotonic() < end:
            time.sleep(chooser.uniform(0.5, 3.0))
            cleaner.clean()
            if chooser.random() < 0.3 and (left := end - time.monotonic()) > 1.0:
                ranks["threaded"].send_signal(signal.SIGKILL)
                ranks["threaded"].wait()
                n_killed += 1
                ranks["threaded"] = start("threaded", folder, left, f"{seed}-threaded{n_killed}")
        for kind, rank in ranks.items():
            assert rank.wait(ROUND_S + WAIT_S) == 0, (seed, kind)
    assert daemons(place) == before, (seed, "a daemon has ended")
    assert not readers.errors, (seed, readers.errors)
    compare_all(place, folder, seed)
    counts += readers.counts + cleaner.counts + Counter(kills=n_killed)


def unsettled_of(client: chiplog.Client, files: dict[str, Path]) -> list[Any]:
    """Return what has not ended or not arrived, and labels of which nothing has arrived yet."""
    known = {row["label"] for row in client.sql("SELECT label FROM labels").rows()}
    unknown = [label for label, file in files.items() if file.stat().st_size and label not in known]
    return [row for row in client.sql(UNSETTLED).rows() if row["label"] in files] or unknown


def compare_all(place: Paths, folder: Path, seed: int) -> None:
    files = {file.stem: file for file in folder.glob("*.oracle")}
    assert len(files) > 3
    with chiplog.connect(dir=place.root) as client:
        deadline = time.monotonic() + WAIT_S
        while unsettled := unsettled_of(client, files):
            assert time.monotonic() < deadline, (seed, unsettled)
            time.sleep(0.5)
        lost = {row["label"]: row["lost"] for row in client.sql("SELECT label, lost FROM completeness").rows()}
        for label, file in files.items():
            query = "SELECT step, value FROM metrics WHERE label = ? AND key = 'value'"
            verdict = compare(file, client.sql(query, [label]).rows(), lost.get(label, 0))
            assert verdict.is_honest, (seed, label, verdict)


@pytest.mark.timeout(900)
@pytest.mark.soak(6)
def test_signals_threads_pools_readers_and_cleaners_lose_nothing_undeclared(
    place: Paths, tmp_path: Path, rounds: Rounds
) -> None:
    for seed in rounds(1):
        one_round(place, tmp_path / f"round{seed}", seed, rounds.counts)
