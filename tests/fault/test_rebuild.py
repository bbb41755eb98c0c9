"""`chiplog rebuild` on a damaged log: readable records are applied, the rest is reported, nothing better is lost."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind, Record
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from tests.support.node import Node
from tests.support.oracle import ORACLE, compare
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

EVENTS = 3_000
VALUES = "SELECT step, value FROM metrics WHERE run_id = 'oracle' AND key = 'value'"
TOLD = "SELECT message FROM events WHERE kind IN ('gap', 'quarantined')"


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[Node, Path]]:
    """A directory with one run, its daemons stopped; and the oracle's file."""
    node, file = Node(tmp_path / "chiplog"), tmp_path / "oracle"
    node.start()
    try:
        command = [sys.executable, "-P", ORACLE, str(file), "--run-id", "oracle", "--pause-s", "0.0002"]
        environment = {**os.environ, "CHIPLOG_DIR": str(node.root)}
        subprocess.run([*command, "--events", str(EVENTS)], env=environment, check=True)
        node.until(VALUES, lambda rows: len(rows) == EVENTS)
        node.stop()
        yield node, file
    finally:
        node.stop()


def rebuild(node: Node) -> str:
    command = [sys.executable, "-P", "-m", "chiplog_cli", "rebuild", "--dir", str(node.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout


def cut(node: Node) -> int:
    """Cut the log after the receipt of a quarter of the events or more; return how many values are left."""
    _, path = list_segments(node.place.collector / "log")[-1]
    n_left = 0
    for record in read_segment(path):
        assert isinstance(record, Record)
        if record.kind == Kind.BLOCK:
            block = decode_block(record.payload)
            n_left += sum(len(group.seq) for group in block.groups if group.kind == EventKind.METRICS)
        elif record.kind == Kind.RECEIPT and n_left > EVENTS // 4:
            os.truncate(path, record.end)
            assert n_left < EVENTS, "the whole run arrived in one commit"
            return n_left
    raise AssertionError(f"the log has {n_left} of {EVENTS} values")


def ask(node: Node, query: str) -> list[dict[str, object]]:
    with chiplog.connect(dir=node.root) as client:
        return client.sql(query).rows()


@proves("rebuild-declares-lost-tail", "the log before a lost end is applied and the loss is declared")
@proves("fuller-database-kept", "a database that holds more than the log is kept", condition=False)
@pytest.mark.promise(5)
def test_a_rebuild_from_a_log_that_lost_its_end_says_so_and_keeps_the_better_file(recorded: tuple[Node, Path]) -> None:
    node, file = recorded
    n_left = cut(node)
    said = rebuild(node)
    (row,) = ask(node, TOLD)
    told = str(row["message"])
    assert told.startswith("log damaged: records ") and told.removeprefix("log damaged: ") in said
    verdict = compare(file, ask(node, VALUES))
    assert not (verdict.doubled or verdict.altered or verdict.extra)
    assert EVENTS - len(verdict.lost) == n_left, verdict
    (kept,) = node.place.collector.glob("*.set-aside-*")
    assert f"the previous file is kept as {kept.name}" in said
    assert "kept" not in rebuild(node), "the one that was made from the same log is not better"
    kept.replace(node.place.index)
    assert compare(file, ask(node, VALUES)).ok


@pytest.mark.full
def test_a_rebuild_from_a_whole_log_has_nothing_to_tell(recorded: tuple[Node, Path]) -> None:
    node, file = recorded
    said = rebuild(node)
    assert len(said.splitlines()) == 1 and "damaged" not in said and "kept" not in said
    assert compare(file, ask(node, VALUES)).ok
    assert ask(node, TOLD) == []


@proves("start-declares-lost-tail", "a collector declares a lost end at its start")
@pytest.mark.full
def test_a_collector_tells_of_a_lost_end_at_its_start(recorded: tuple[Node, Path]) -> None:
    """Without an agent that sends anything."""
    node, _ = recorded
    n_left = cut(node)
    node.place.index.unlink()
    node.start_collector()
    node.until(TOLD, lambda rows: len(rows) == 1)
    assert len(ask(node, VALUES)) == n_left
    [event] = node.until("SELECT level, message FROM events WHERE kind = 'log_end_lost'")
    assert event["level"] == "error" and event["message"] in node.output("chiplog_collector")
