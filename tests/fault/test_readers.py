"""Readers try more than to read: whatever they send, nothing is written, no file is read, and ingest continues.

A real collector and agent, an oracle that logs all the time, and readers that use the protocol directly.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import QueryMessageKind
from tests.support.node import Node
from tests.support.oracle import ORACLE, compare
from tests.support.query_client import (
    A_SELECT_THAT_IS_STOPPED,
    FOR_EVER,
    NO_FILES,
    NOT_A_SELECT,
    REFUSALS,
    Asker,
    assert_is_stopped,
)
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

STUBBORN = 10_000_000  # letters: some minutes of work in one call, which no interruption ends
MEMORY_BYTES_MAX = 4 << 30  # of the index: what `memory.py` lets it have, and some for what it had before

# Each would use up all memory, all of the disk, all of the time, or the stack.
EXHAUSTING = [
    FOR_EVER,
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    "WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t",
    "SELECT list(range) FROM range(2000000000)",
    "SELECT repeat('x', 2000000000)",
    "SELECT string_agg(repeat('x', 1000000), ',') FROM range(100000)",
    "SELECT range(1000000000)",
    "SELECT count(DISTINCT (a.range, b.range)) FROM range(1000000) a, range(1000000) b",
    "SELECT * FROM range(2000000000) ORDER BY hash(range)",
    "SELECT array_agg(range ORDER BY hash(range)) OVER () FROM range(100000000)",
    "SELECT a.range FROM range(100000000) a JOIN range(100000000) b ON hash(a.range) % 1000 = hash(b.range) % 1000",
    "SELECT regexp_matches(repeat('a', 100000) || 'b', '(a*)*(a*)*c') FROM range(100000)",
    "SELECT histogram(range) FROM range(1000000000)",
    "SELECT * FROM range(1000000000)",
    "SELECT repeat(range::VARCHAR, 1000) FROM range(10000000)",
    "SELECT " + "(" * 900 + "1" + ")" * 900,
    "SELECT " + " + ".join(["1"] * 4900),
    "SELECT * FROM " + ", ".join(["range(1000)"] * 400),
    "SELECT " + "list_value(" * 300 + ")" * 300,
    "SELECT bitstring_agg(range) FROM range(100000000)",
]
ATTACKS = {  # and the text that proves what stopped it
    **dict.fromkeys(NOT_A_SELECT, REFUSALS),
    **A_SELECT_THAT_IS_STOPPED,
    "SELECT 1; COMMIT; BEGIN; DELETE FROM base.runs": REFUSALS,
    "FROM read_csv('{dir}/x.csv')": NO_FILES,
    "SELECT content FROM read_text('{dir}/x.csv')": NO_FILES,
}


class Logging:
    """An oracle rank that logs for as long as readers do their worst."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self.file = directory / "oracle"
        command = [sys.executable, "-P", ORACLE, str(self.file), "--events", "1000000", "--pause-s", "0.002"]
        self.process = subprocess.Popen(command, env=dict(os.environ, CHIPLOG_DIR=str(node.root)))
        wait_until(lambda: self.n_visible() > 0, "an event of the oracle in SQL")

    def n_visible(self) -> int:
        rows = self.node.try_sql("SELECT count(*) AS n FROM metrics WHERE key = 'value'")
        return int(rows[0]["n"]) if rows else 0

    def end(self) -> None:
        """Kill it, and compare."""
        self.process.kill()
        self.process.wait()
        self.node.until("SELECT pending, lost FROM completeness", lambda rows: rows == [{"pending": 0, "lost": 0}])
        self.node.until("SELECT state FROM labels", lambda rows: rows[0]["state"] == "crashed")
        verdict = compare(self.file, self.node.sql("SELECT step, value FROM metrics WHERE key = 'value'"))
        assert verdict.ok, verdict
        assert verdict.expected > 100


@pytest.fixture
def logging_rank(node: Node, tmp_path: Path) -> Iterator[Logging]:
    logging = Logging(node, tmp_path)
    yield logging
    logging.process.kill()
    logging.process.wait()


@pytest.fixture
def reader(node: Node) -> Iterator[Asker]:
    asker = Asker(node.place.query_address)
    yield asker
    asker.close()


def index_pid(node: Node) -> int:
    assert node.collector is not None
    pid = node.collector.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def n_stuck(node: Node) -> int:
    """How many queries did not end for so long that the index was replaced: on a slow machine one may."""
    return (node.root / "chiplog_collector.log").read_text().count("a query cannot be cancelled")


@proves("one-statement-per-query", "a query is one statement", condition=False)
@proves("select-only", "a query is a SELECT", new='if kind != "EXPLAIN":')
@proves(
    "external-access-off",
    "the index cannot read or write other files",
    part='"SET GLOBAL enable_external_access = false",',
)
@proves(
    "read-only-transaction", "a query runs in a read-only transaction", part="TRANSACTION READ ONLY", new="TRANSACTION"
)
@proves("writing-functions-refused", "functions that change the database are refused by name", condition=False)
def test_no_way_to_write_or_to_read_files_changes_anything(
    node: Node, reader: Asker, logging_rank: Logging, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "other.duckdb").write_bytes(b"not for readers")
    (outside / "x.csv").write_text("secret,words\n1,2\n")
    pid = index_pid(node)
    files = node.place.files
    files.mkdir(parents=True, exist_ok=True)
    (files / "link").symlink_to("/etc/passwd")
    views = node.sql("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1")
    for attack, words in ATTACKS.items():
        text = attack.replace("{dir}", str(outside)).replace("{files}", str(files))
        assert_is_stopped(attack, reader.ask(text), words)
    assert sorted(path.name for path in outside.iterdir()) == ["other.duckdb", "x.csv"]
    assert [path.name for path in files.iterdir()] == ["link"]
    assert node.sql("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1") == views
    assert index_pid(node) == pid, "the index is the same process"
    logging_rank.end()


@proves("result-bounded", "a result has a bound", condition=False)
@proves("index-memory-bounded", "the index has a bound of memory as a whole")
@pytest.mark.full
def test_no_query_exhausts_the_collector(node: Node, reader: Asker, logging_rank: Logging) -> None:
    pids = [index_pid(node)]
    for sql in EXHAUSTING:
        before = logging_rank.n_visible()
        answer = reader.ask(sql, timeout_s=0.5)
        shown = (sql[:80], answer.error_kind, answer.message)
        assert answer.kind == QueryMessageKind.RESULT or answer.error_kind in query_messages.ERROR_KINDS, shown
        wait_until(lambda n=before: logging_rank.n_visible() > n, f"new events behind {sql[:80]}")
        if (pid := index_pid(node)) != pids[-1]:
            pids.append(pid)
        assert peak_bytes(pid) < MEMORY_BYTES_MAX, sql[:80]
    answer = reader.ask("SELECT hash(range) FROM range(1000000000)")
    assert answer.error_kind == "too_large", (answer.error_kind, answer.message)
    assert index_pid(node) == pids[-1]
    assert len(pids) - 1 <= n_stuck(node), "the index is the same process"
    assert peak_bytes(pids[-1]) < MEMORY_BYTES_MAX
    logging_rank.end()


@proves("long-query-cancelled", "a query that takes too long is cancelled", condition=False)
@pytest.mark.promise(9)
def test_a_runaway_query_is_cancelled_and_ingest_goes_on(node: Node, reader: Asker, logging_rank: Logging) -> None:
    begun = time.monotonic()
    ids = {reader.send(FOR_EVER, timeout_s=2), reader.send(FOR_EVER, timeout_s=2)}
    before = logging_rank.n_visible()  # waits for one of the two places
    answers = [reader.receive() for _ in ids]
    assert {answer.id for answer in answers} == ids
    assert {answer.error_kind for answer in answers} == {"timeout"}
    assert time.monotonic() - begun < 100, "a query of two seconds"
    wait_until(lambda: logging_rank.n_visible() > before, "events that came while the queries ran")
    logging_rank.end()


@proves("uncancellable-query-ends-process", "a query that cannot be cancelled ends with its process", value="False")
@pytest.mark.full
def test_a_query_that_cannot_be_cancelled_is_answered_in_time_and_ends_with_its_process(
    node: Node, reader: Asker, logging_rank: Logging
) -> None:
    pid = index_pid(node)
    begun = time.monotonic()
    answer = reader.ask(f"SELECT jaro_similarity(repeat('a', {STUBBORN}), repeat('b', {STUBBORN}))", timeout_s=1)
    assert answer.error_kind == "timeout", answer.message
    assert time.monotonic() - begun < 100, "one function on one value ignores interruptions"
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "another index")
    before = logging_rank.n_visible()
    wait_until(lambda: logging_rank.n_visible() > before, "new events in the new one")
    logging_rank.end()


@pytest.mark.full
def test_readers_that_never_read_and_sixteen_that_do_cost_nobody_an_event(
    node: Node, reader: Asker, logging_rank: Logging
) -> None:
    pid = index_pid(node)
    for _ in range(6):  # 100 MB each, and no client fetches them
        reader.send("SELECT range, hash(range), repeat('x', 10) FROM range(4000000)")
    stop = threading.Event()
    answered = [0] * 16

    def ask(number: int) -> None:
        asker = Asker(node.place.query_address)
        while not stop.is_set():
            answer = asker.ask("SELECT label, count(*), avg(value) FROM metrics GROUP BY label")
            assert answer.kind == QueryMessageKind.RESULT or answer.error_kind == "busy", answer.message
            answered[number] += 1
        asker.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    stop.set()
    for thread in threads:
        thread.join()
    assert all(answered), answered
    assert index_pid(node) == pid, "the index is the same process"
    assert peak_bytes(pid) < MEMORY_BYTES_MAX
    logging_rank.end()
