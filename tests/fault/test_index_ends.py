"""The index and its readers: checkpoints cut no query; a query that ends the process costs no other its answer."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog_client.results.result import QueryError
from tests.support.node import Node
from tests.support.oracle import ORACLE, compare
from tests.support.patched import patch_daemons
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

# Checkpoints every 0.2 s; each leaves a line in a file.
FREQUENT_CHECKPOINTS = """
import sys
if "chiplog_collector.index" in " ".join(sys.orig_argv):
    import chiplog_collector.index.cleaning.checkpoints as checkpoints
    from chiplog_collector.index.database import Database
    checkpoints.CHECKPOINT_INTERVAL_S = 0.2
    checkpoint = Database.checkpoint
    def noted(self):
        word = "refused"
        try:
            checkpoint(self)
            word = "written"
        finally:
            with open({notes!r}, "a") as notes:
                notes.write(word + "\\n")
    Database.checkpoint = noted
"""
# A query with the word `crash_here` kills the process. `break_here` acts like an assertion that fails in DuckDB: its
# query raises, and from then on every statement of every connection does. `fault_here` makes the writer fail.
BREAKS = """
import sys
if "chiplog_collector.index" in " ".join(sys.orig_argv):
    import os, signal, time
    import duckdb
    from chiplog_collector.index.cleaning import checkpoints
    from chiplog_collector.index import database
    from chiplog_collector.query import query_worker as query
    is_broken, is_faulty = [], []
    def check():
        if is_broken:
            raise duckdb.FatalException("FATAL Error: Failed: database has been invalidated")
    run, write, refused = query.QueryWorker._run_query, database.Database._write, query.QueryWorker._is_invalidated
    def run_query(self, job, *how):
        check()
        if "'crash_here'" in job.sql:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        if "'break_here'" in job.sql:
            time.sleep(0.3)
            is_broken.append(1)
            raise duckdb.InternalException("INTERNAL Error: dict-surviving join: narrowed column")
        if "'fault_here'" in job.sql:
            is_faulty.append(1)
            time.sleep(1.0)
        rows = run(self, job, *how)
        check()
        return rows
    def _write(self, batch, state, next_number):
        check()
        write(self, batch, state, next_number)
    turn = checkpoints.Checkpoints.turn
    def failing(self, now):
        if is_faulty:
            raise MemoryError("a fault that no query explains")
        turn(self, now)
    checkpoints.Checkpoints.turn = failing
    query.QueryWorker._run_query = run_query
    database.Database._write = _write
    query.QueryWorker._is_invalidated = lambda self: bool(is_broken)
"""
# About half a second each, of real rows.
LONG = "SELECT count(*) AS n, sum(hash(m.value + r.range)) AS h FROM metrics m, range(400000) r WHERE m.step < 40"


def index_pid(node: Node) -> int:
    assert node.collector is not None
    children = Path(f"/proc/{node.collector.pid}/task/{node.collector.pid}/children").read_text().split()
    return int(children[0]) if children else 0


class Readers:
    """Clients that ask one query again and again, each in a thread."""

    def __init__(self, node: Node, queries: list[str]) -> None:
        self.n_answers = [0] * len(queries)
        self.failures: list[str] = []
        self._node = node
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=entry) for entry in enumerate(queries)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int, query: str) -> None:
        with chiplog.connect(dir=self._node.root) as client:
            while not self._stop.is_set():
                try:
                    client.sql(query)
                    self.n_answers[number] += 1
                except QueryError as error:
                    self.failures.append(f"{error.kind}: {error}")
                    self._stop.wait(0.1)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@proves(
    "checkpoint-beside-readers",
    "a checkpoint runs while readers are active",
    new='self.connection.execute("UPDATE base.position SET next_number = ?", [next_number])\nreturn',
)
@pytest.mark.full
@pytest.mark.soak(2)
def test_checkpoints_cut_no_query_and_no_query_stops_checkpoints(
    bare_node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: Rounds
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    patch_daemons(monkeypatch, tmp_path / "patch", FREQUENT_CHECKPOINTS.format(notes=str(notes)))
    node = bare_node.start()
    file = tmp_path / "oracle"
    command = [sys.executable, "-P", ORACLE, str(file), "--events", "100000000", "--pause-s", "0.002"]
    rank = subprocess.Popen(command, env=dict(os.environ, CHIPLOG_DIR=str(node.root)))
    try:
        node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"] > 50)
        pid = index_pid(node)
        readers = Readers(node, [LONG, LONG, LONG.replace("40", "5"), "SELECT * FROM runs"])
        for _ in rounds(1):
            until = len(notes.read_text().split()) + 12
            wait_until(lambda n=until: len(notes.read_text().split()) >= n or readers.failures, "12 checkpoints")
        readers.stop()
    finally:
        rank.kill()
        rank.wait()
    words = notes.read_text().split()
    rounds.count("checkpoints", len(words))
    rounds.count("queries", sum(readers.n_answers))
    assert not readers.failures, readers.failures[:3]
    assert all(readers.n_answers), readers.n_answers
    assert set(words) == {"written"}, "with readers, too"
    assert index_pid(node) == pid, "the index is the same process"
    ended = "SELECT pending, lost FROM completeness JOIN labels USING (run_id, label, attempt) WHERE state = 'crashed'"
    node.until(ended, lambda rows: rows == [{"pending": 0, "lost": 0}])
    verdict = compare(file, node.sql("SELECT step, value FROM metrics WHERE key = 'value'"))
    assert verdict.ok, verdict


@proves(
    "crash-is-no-stop", "an index that ends by itself does not answer that the collector stops", new="service.close()"
)
@proves("invalidated-query-asked-again", "a query that broke DuckDB is answered by the next index", condition=False)
@proves("suspect-refused-third-time", "a query that ended the index twice is refused", condition=False)
@proves("running-queries-survive-crash", "what ran when an index ended is known to the next one", part="page")
@pytest.mark.parametrize(
    "word", ["crash_here", *(pytest.param(word, marks=pytest.mark.full) for word in ("break_here", "fault_here"))]
)
@pytest.mark.full
def test_a_query_that_ends_the_index_is_refused_the_third_time_and_costs_no_other_its_answer(
    bare_node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    patch_daemons(monkeypatch, tmp_path / "patch", BREAKS)
    node = bare_node.start()
    innocent = "SELECT count(*) AS n FROM range(30000000) r WHERE hash(r.range) % 7 = 3"
    readers = Readers(node, [innocent, innocent.replace("7", "11"), "SELECT * FROM labels", "SELECT 1 AS one"])
    try:
        wait_until(lambda: all(readers.n_answers), "an answer for each reader")
        pid = index_pid(node)
        with chiplog.connect(dir=node.root) as client, pytest.raises(QueryError) as refused:
            client.sql(f"SELECT '{word}' AS what")
        before = list(readers.n_answers)
        wait_until(lambda: all(now > n for now, n in zip(readers.n_answers, before, strict=True)), "answers afterwards")
    finally:
        readers.stop()
    assert refused.value.kind == "refused"
    assert f"query SELECT '{word}' AS what ended the index twice; rewrite it" in str(refused.value)
    assert not readers.failures, readers.failures
    output = node.output("chiplog_collector")
    assert output.count("index ended with exit status") == 2, "and by no third try"
    assert "the collector is stopping" not in output
    pid = index_pid(node)
    with chiplog.connect(dir=node.root) as client:
        for _ in range(2):
            with pytest.raises(QueryError, match="ended the index twice"):
                client.sql(f"SELECT '{word}' AS what")
        assert client.sql(f"SELECT '{word}!' AS what").rows() == [{"what": f"{word}!"}], "another text"
    assert index_pid(node) == pid


def stop_beside(node: Node, query: str, after_s: float, **source: str) -> "list[Any]":
    """Stop the collector while it runs a query. Return the rows, or the error."""
    found: list[Any] = []
    connected = threading.Event()

    def ask() -> None:
        with chiplog.connect(**source) as client:
            client.sql("SELECT 1")
            connected.set()
            try:
                found.append(client.sql(query).rows())
            except QueryError as error:
                found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert connected.wait(WAIT_S)
    time.sleep(after_s)
    node.stop_collector()
    thread.join()
    return found


def test_the_end_that_the_collector_asked_for_is_answered(node: Node) -> None:
    forever = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE (a.range + b.range) % 9 = 1"
    (error,) = stop_beside(node, forever, 1.0, url=node.place.collector_address)
    assert (error.kind, error.message) == ("stopping", "the collector is stopping; ask again later")


@proves("cut-query-asked-again", "a query that the collector's end cuts off is asked again", part='"stopping"')
@pytest.mark.full
def test_a_query_that_a_stopping_collector_cuts_off_is_answered_from_the_file(node: Node) -> None:
    # Half a second on an idle machine: a busy one takes less than the 30 s that a query may last.
    slow = "SELECT count(*) AS n FROM range(15000) a, range(15000) b WHERE (a.range + b.range) % 9 = 1"
    (rows,) = stop_beside(node, slow, 0.2, dir=str(node.root))
    assert rows == [{"n": 24_999_999}]
