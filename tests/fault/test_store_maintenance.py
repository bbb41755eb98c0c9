"""A store has each row once and nothing deleted, whenever maintenance is killed, and when two processes do it at once.

Real processes that kill themselves at a named call, before or after it, or at a random moment. The oracle is what was
published, and what was deleted of it.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import duckdb
import pytest

from chiplog_collector.store.compaction import delete_rows, load_deletions, read_deletions
from chiplog_collector.store.delta_store import Addition, DeltaStore
from chiplog_collector.store.published_tables import ORDERS, live_rows
from tests.support.lake import VersionReader
from tests.support.rounds import Rounds
from tests.support.s3_server import BUCKET, s3_server
from tests.support.store_files import DAY, parquet
from tests.support.waiting import WAIT_S

LOGS = ("aa" * 16, "bb" * 16)
PIECE = 40  # rows
# Calls of a turn: within reading and sorting, the upload, the commit, the checkpoint after it, and the vacuum.
POINTS = ("fetch", "write_rows", "_put", "_upload", "_commit", "_sync", "vacuum", "random")
KILLED = -9
REFUSED = 3
MAINTAIN = """
import os, random, signal, sys, threading, time
from pathlib import Path
from chiplog_collector.store import compaction, delta_store
from chiplog_collector.store.compaction import compact, delete_rows, read_deletions
from chiplog_collector.store.delta_store import DeltaStore, StoreError
from chiplog_collector.store.published_tables import ORDERS

url, scratch, point, moment, nth, seed = sys.argv[1:]
compaction.SLICE_ROWS = 100
n_calls = 0


def patch(owner, name):
    called = getattr(owner, name)

    def counted(*given, **named):
        global n_calls
        n_calls += 1
        mine = n_calls
        if mine == int(nth) and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = called(*given, **named)
        if mine == int(nth) and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, name, counted)


def later():
    time.sleep(random.Random(seed).uniform(0.0, 0.4))
    os.kill(os.getpid(), signal.SIGKILL)


if point == "write_rows":
    patch(compaction, point)
elif point == "random":
    threading.Thread(target=later, daemon=True).start()
elif point:
    patch(DeltaStore, point)
store, place = DeltaStore(url, "cc" * 16), Path(scratch)
try:
    deletions = read_deletions(store, place)
    while delete_rows(store, "metrics", ORDERS["metrics"], deletions, place) is not None:
        pass
    while compact(store, "metrics", ORDERS["metrics"], place, pieces_min=2):
        pass
    store.vacuum("metrics")
except StoreError as error:
    print(error)
    sys.exit(3)
"""


class History:
    """What two logs published and deleted, and the store that has it."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.is_s3 = url.startswith("s3:")
        self.directory = directory
        self.live: dict[tuple[str, str, int], float] = {}
        self.number = 0
        self.seqs: dict[tuple[str, str], int] = {}

    def store(self, log: str = LOGS[0]) -> DeltaStore:
        return DeltaStore(self.url, log)

    def publish(self, log: str, table: str, query: str) -> None:
        self.number += 1
        file = parquet(self.directory / "piece.parquet", query.format(log=log, number=self.number))
        assert self.store(log).publish(Addition(table, file, DAY, self.number - 1, self.number, f"{self.number:016x}"))

    def add(self, log: str, chooser: random.Random) -> None:
        rows = []
        for _ in range(PIECE):
            producer = f"p{chooser.randrange(4)}"
            seq = self.seqs[(log, producer)] = self.seqs.get((log, producer), 0) + 1
            value = chooser.random()
            self.live[(log, producer, seq)] = value
            rows.append(f"('run{seq % 3}', '{producer}', {seq}::BIGINT, {value!r}::DOUBLE)")
        query = f"""SELECT '{{log}}' AS log, {{number}}::BIGINT AS number, run_id, producer, 'key' AS key, seq AS step,
            seq, value, now() AS ts FROM (VALUES {", ".join(rows)}) t(run_id, producer, seq, value)"""
        self.publish(log, "metrics", query)

    def delete(self, log: str, producer: str) -> None:
        query = f"""SELECT '{{log}}' AS log, {{number}}::BIGINT AS number, '{producer}' AS producer,
            NULL::VARCHAR AS run_id, NULL::TIMESTAMPTZ AS samples_until, false AS is_request"""
        self.publish(log, "deletions", query)
        self.live = {row: value for row, value in self.live.items() if row[:2] != (log, producer)}

    def maintain(self, point: str = "", moment: str = "", nth: int = 1, seed: int = 0) -> "subprocess.Popen[bytes]":
        scratch = str(self.directory / f"scratch-{point or 'whole'}")
        given = [self.url, scratch, point, moment, str(nth), str(seed)]
        return subprocess.Popen([sys.executable, "-P", "-c", MAINTAIN, *given], stdout=subprocess.DEVNULL)

    def check(self, *, is_clean: bool = False) -> None:
        """Compare the live rows with the oracle. is_clean: nothing deleted is in a file."""
        store = self.store()
        files = store.fetch_all("metrics", store.snapshot("metrics"), self._emptied("files"))
        with duckdb.connect() as engine:
            load_deletions(engine, read_deletions(store, self.directory / "read"))
            condition = "true" if is_clean else live_rows("metrics")
            query = f"SELECT log, producer, seq, value FROM read_parquet(?) f WHERE {condition}"
            found = engine.execute(query, [files]).fetchall()
        assert len(found) == len(self.live)
        assert {(log, producer, seq): value for log, producer, seq, value in found} == self.live

    def _emptied(self, name: str) -> Path:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        for path in directory.iterdir():
            path.unlink()
        return directory


@pytest.fixture(params=["disk", pytest.param("S3", marks=pytest.mark.full)])
def history(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    is_s3 = request.param == "S3"
    (tmp_path / "server").mkdir()
    with s3_server(tmp_path / "server") if is_s3 else nullcontext({}) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield History(f"s3://{BUCKET}/lake" if is_s3 else f"file://{tmp_path}/lake", tmp_path)


@pytest.mark.soak(2)
def test_each_row_is_there_once_and_nothing_deleted_comes_back_whenever_maintenance_is_killed(
    history: History, rounds: Rounds
) -> None:
    for log in LOGS:
        history.add(log, random.Random(0))
    for n_before, seed in enumerate(rounds(1)):
        chooser = random.Random(seed)
        for number, point in enumerate(POINTS):
            # Before it on disk and after it on S3, or the other way round; the next round of a soak has the rest.
            moment = ("before", "after")[(number + n_before + history.is_s3) % 2]
            log = chooser.choice(LOGS)
            for _ in range(2):
                history.add(log, chooser)
            if chooser.random() < 0.5:
                history.delete(log, f"p{chooser.randrange(4)}")
            nth = 1 if point == "vacuum" else chooser.randrange(1, 4)
            turns = [history.maintain(point, moment, nth, chooser.randrange(1 << 30))]
            if chooser.random() < 0.3:
                turns.append(history.maintain())  # two at once
            history.add(chooser.choice(LOGS), chooser)  # while they work
            ends = [turn.wait(WAIT_S) for turn in turns]
            assert set(ends) <= {0, KILLED, REFUSED}, (point, moment, ends)
            rounds.count("kills", ends.count(KILLED))
            history.check()
        assert history.maintain().wait(WAIT_S) == 0
        history.check(is_clean=True)
    reader = VersionReader(history.url, history.directory)
    reader.check_versions("metrics", "log, producer, seq")
    rounds.count("versions", reader.n_versions)
    reader.close()


def test_a_deletion_that_was_killed_is_carried_out_by_another_process(history: History) -> None:
    for log in LOGS:
        history.add(log, random.Random(1))
    history.delete(LOGS[0], "p1")
    for moment in ("before", "after"):
        assert history.maintain("_commit", moment).wait(WAIT_S) == KILLED
        history.check()
    store, scratch = history.store(LOGS[1]), history.directory / "other"
    while delete_rows(store, "metrics", ORDERS["metrics"], read_deletions(store, scratch), scratch) is not None:
        pass
    history.check(is_clean=True)
    assert os.listdir(history.directory).count("other") == 0
