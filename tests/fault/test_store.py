"""A store has each row once, whatever is away, copied or rebuilt in between. `test_store_kills.py` kills processes.

Real processes, real signals, a store in a directory. The oracle is what the rank has written into files of its own.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chiplog_client.client import connect
from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.outbox import Outbox
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.storage.segment_format import log_owner
from tests.support.disk.faults import small_disk
from tests.support.lake import stored_rows
from tests.support.node import Node
from tests.support.oracle import compare
from tests.support.patched import patch_daemons
from tests.support.safeguard import proves
from tests.support.store_ranks import OFTEN, log_some, n_logged, rank_of
from tests.support.waiting import WAIT_S, wait_until

SOON = {"CHIPLOG_TEST_WAIT_TIMES": "0.2"}  # without the safeguard, tests wait in vain
UNCUT = "a piece for the store cannot be cut"
AWAY = " cannot be used: "
REFUSED = "nothing is published"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the store of each collector that the test starts from now on; its name needs an escape."""
    lake = tmp_path / "a lake"
    monkeypatch.setenv("CHIPLOG_STORE", f"file://{lake}")
    patch_daemons(monkeypatch, tmp_path / "patch", OFTEN)
    return lake


def wait_for(lake: Path, *files: Path) -> None:
    """Wait until the store has as many values as were logged; each step has two."""
    wait_until(lambda: len(stored_rows(lake, "metrics", "seq")) >= 2 * n_logged(*files), "a store that has all values")


def check(lake: Path, **files: Path) -> int:
    """Compare a store with what was logged, by run; return the number of its values."""
    keys = stored_rows(lake, "metrics", "producer, seq, key")
    assert len(keys) == len(set(keys)) == 2 * n_logged(*files.values())
    for run_id, file in files.items():
        rows = stored_rows(lake, "metrics", "run_id, key, step, value")
        found = [{"step": step, "value": value} for run, key, step, value in rows if (run, key) == (run_id, "value")]
        verdict = compare(file, found)
        assert verdict.ok and not verdict.extra, verdict
        lines = [text for run, text in stored_rows(lake, "console", "run_id, line") if run == run_id]
        expected = [f"at {step}" for step in range(0, verdict.expected, 10)]
        assert sorted(line for line in lines if line.startswith("at ")) == sorted(expected)
    return len(keys)


def publisher_of(node: Node) -> int:
    return lock_holder_pid(node.place.collector / "store.lock")


def wait_for_publisher(node: Node) -> int:
    return int(wait_until(lambda: publisher_of(node), "a publisher"))


def stop(node: Node) -> None:
    """Stop a collector in order: its last piece is published."""
    node.stop()
    assert Outbox(node.place.store).ends() == []


@proves("start-of-publishing-noted", "a copied directory notes which of its records the store cannot have")
def test_a_copied_directory_publishes_nothing_and_says_so(bare_node: Node, lake: Path, tmp_path: Path) -> None:
    node, first, second, other = bare_node, tmp_path / "first", tmp_path / "second", tmp_path / "other"
    log_some(node.start(), first, "first")
    wait_for(lake, first)
    stop(node)
    shutil.copytree(node.root, tmp_path / "copy", ignore=shutil.ignore_patterns("run"))
    log_some(node.start(), second, "second")
    wait_for(lake, first, second)
    with Node(tmp_path / "copy") as copy:
        log_some(copy.start(), other, "other")
        wait_until(lambda: REFUSED in copy.output("chiplog_collector"), "a publisher that refuses")
        third = tmp_path / "third"
        log_some(node, third, "third")
        wait_for(lake, first, second, third)
        kept = "SELECT count(DISTINCT step) AS n FROM metrics WHERE run_id = 'other'"
        copy.until(kept, lambda rows: rows[0]["n"] == n_logged(other))
    said = copy.output("chiplog_collector").splitlines()
    [refusal] = [line for line in said if REFUSED in line]
    assert "it lost its end, or is a copy" in refusal
    assert not any("the publisher ended" in line for line in said)
    assert not any("Traceback" in line for line in said)
    stop(node)
    command = [sys.executable, "-P", "-m", "chiplog_cli", "rebuild", "--dir", str(tmp_path / "copy")]
    rebuilt = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)
    assert "has other records of this log" in rebuilt.stdout + rebuilt.stderr
    check(lake, first=first, second=second, third=third)


def test_a_publisher_that_was_stopped_while_a_copy_went_on_is_refused_when_it_wakes(
    bare_node: Node, lake: Path, tmp_path: Path
) -> None:
    node, first, waiting, other = bare_node, tmp_path / "first", tmp_path / "waiting", tmp_path / "other"
    log_some(node.start(), first, "first")
    wait_for(lake, first)
    publisher = wait_for_publisher(node)
    os.kill(publisher, signal.SIGSTOP)
    try:
        log_some(node, waiting, "waiting")
        node.until("SELECT 1 FROM labels WHERE run_id = 'waiting' AND state <> 'running'")
        wait_until(lambda: Outbox(node.place.store).ends(), "pieces that wait")
        assert node.collector is not None
        node.collector.kill()
        node.collector.wait()
        wait_until(lambda: not lock_holder_pid(node.place.index_lock), "an index that ended")
        node.stop_agent()
        shutil.copytree(node.root, tmp_path / "copy", ignore=shutil.ignore_patterns("run"))
        with Node(tmp_path / "copy") as copy:
            log_some(copy.start(), other, "other")
            wait_for(lake, first, waiting, other)
            stop(copy)
    finally:
        os.kill(publisher, signal.SIGCONT)
    wait_until(lambda: not publisher_of(node), "a publisher that ended")
    assert REFUSED in node.output("chiplog_collector")
    check(lake, first=first, waiting=waiting, other=other)


def id_of(node: Node) -> str:
    return (log_owner(node.place.collector / "log") or b"").hex()


@pytest.mark.full
@proves("retired-log-has-new-id", "a retired log that returns continues under another ID", environment=SOON)
@proves("retired-log-publishes-nothing", "a log that was retired publishes nothing under its ID", environment=SOON)
def test_a_retired_log_that_returns_continues_under_a_new_id(bare_node: Node, lake: Path, tmp_path: Path) -> None:
    node, first, second, third = bare_node, tmp_path / "first", tmp_path / "second", tmp_path / "third"
    log_some(node.start(), first, "first")
    wait_for(lake, first)
    stop(node)
    ids = [id_of(node)]
    store = DeltaStore(f"file://{lake}", "00" * 16)
    store.retire(ids[0])
    node.start()
    wait_until(lambda: id_of(node) not in ids, "a new ID")
    ids.append(id_of(node))
    log_some(node, second, "second")
    wait_for(lake, first, second)
    with rank_of(node, third, "third"):
        wait_until(lambda: (ids[1], "third") in stored_rows(lake, "metrics", "log, run_id"), "a piece")
        store.retire(ids[1])
        wait_until(lambda: id_of(node) not in ids, "a new ID")
    ids.append(id_of(node))
    assert ids == sorted(ids)
    wait_for(lake, first, second, third)
    logs = set(stored_rows(lake, "metrics", "log, run_id"))
    assert logs >= {(ids[0], "first"), (ids[1], "second"), (ids[2], "third")}
    assert {run for log, run in logs if log == ids[0]} == {"first"}
    assert node.output("chiplog_collector").count(" was retired; it continues as ") == 2
    stop(node)
    [former] = [beat.content["former"] for beat in store.heartbeats() if beat.log == ids[2]]
    assert former == [ids[1], ids[0]], "readers know that it continues these"
    check(lake, first=first, second=second, third=third)


def test_a_run_is_edited_at_a_collector_that_has_no_part_of_it(bare_node: Node, lake: Path, tmp_path: Path) -> None:
    node, first = bare_node, tmp_path / "first"
    log_some(node.start(), first, "first")
    wait_for(lake, first)
    with Node(tmp_path / "second") as other:
        other.start()
        other.until("SELECT 1 FROM runs WHERE run_id = 'first'")
        with connect(dir=other.root) as client:
            assert client.edit_run("first", name="edited", tags=["a"])["asked"]
        for each in (node, other):
            query = "SELECT name, tags FROM runs WHERE run_id = 'first'"
            each.until(query, lambda rows: rows == [{"name": "edited", "tags": ["a"]}])
            each.until(
                "SELECT run_id FROM events WHERE kind = 'run_edited'", lambda rows: rows == [{"run_id": "first"}]
            )
        stop(other)
    stop(node)


def check_outage(node: Node, lake: Path, **files: Path) -> None:
    """Check that one line and two events report the outage, and that all rows are in the store now."""
    wait_for(lake, *files.values())
    node.until("SELECT 1 FROM events WHERE kind = 'store_back'")
    events = node.sql("SELECT kind, level, message FROM events WHERE kind LIKE 'store_%' ORDER BY ts")
    assert [(event["kind"], event["level"]) for event in events] == [("store_away", "warning"), ("store_back", "info")]
    assert AWAY in events[0]["message"]
    stop(node)
    said = node.output("chiplog_collector")
    assert said.count(AWAY) == said.count(" is back; ") == 1
    assert "Traceback" not in said and "\x1b" not in said
    check(lake, **files)


@proves(
    "store-away-stops-nothing",
    "a store that is away costs one line, no acknowledgement and no row",
    value="()",
    environment=SOON,
)
@pytest.mark.promise(11)
def test_a_store_that_is_away_stops_nothing(bare_node: Node, lake: Path, tmp_path: Path) -> None:
    node, before, during, away = bare_node.start(), tmp_path / "before", tmp_path / "during", tmp_path / "away"
    log_some(node, before, "before")
    wait_for(lake, before)
    lake.rename(away)
    lake.write_bytes(b"")
    log_some(node, during, "during")
    node.until("SELECT 1 FROM labels WHERE run_id = 'during' AND state <> 'running'")  # acknowledged and shown
    wait_until(lambda: AWAY in node.output("chiplog_collector"), "a line")
    wait_until(lambda: Outbox(node.place.store).ends(), "pieces that wait")
    lake.unlink()
    away.rename(lake)
    check_outage(node, lake, before=before, during=during)


def test_a_full_disk_under_the_outbox_stops_nothing(bare_node: Node, lake: Path, tmp_path: Path) -> None:
    node, before, during = bare_node, tmp_path / "before", tmp_path / "during"
    with small_disk(node.place.store, 4 << 20) as disk:
        node.start()
        log_some(node, before, "before")
        wait_for(lake, before)
        disk.fill()
        log_some(node, during, "during")
        node.until("SELECT 1 FROM labels WHERE run_id = 'during' AND state <> 'running'")  # acknowledged and shown
        wait_until(lambda: UNCUT in node.output("chiplog_collector"), "a line")
        disk.free()
        wait_for(lake, before, during)
        stop(node)
        said = node.output("chiplog_collector")
        assert said.count(UNCUT) == said.count("pieces for the store can be cut again") == 1, said
        assert said.count(AWAY) <= 1 and "Traceback" not in said, said
        check(lake, before=before, during=during)


@proves(
    "emptied-store-is-away",
    "what is in place of a store that is not mounted gets no rows",
    condition=False,
    environment=SOON,
)
@pytest.mark.parametrize("place", ["an empty directory", pytest.param("a file", marks=pytest.mark.full)])
def test_a_store_that_is_away_at_the_start_is_waited_for(
    bare_node: Node, lake: Path, tmp_path: Path, place: str
) -> None:
    node, before, during, away = bare_node.start(), tmp_path / "before", tmp_path / "during", tmp_path / "away"
    log_some(node, before, "before")
    wait_for(lake, before)
    stop(node)
    lake.rename(away)
    if place == "a file":
        lake.write_bytes(b"")
    else:
        lake.mkdir()
    log_some(node.start(), during, "during")
    wait_until(lambda: Outbox(node.place.store).ends(), "pieces that wait")
    wait_until(lambda: AWAY in node.output("chiplog_collector"), "a line")
    time.sleep(3.0)  # it tries again in this time
    if place == "a file":
        lake.unlink()
    else:
        lake.rmdir()  # nothing was written to it
    away.rename(lake)
    check_outage(node, lake, before=before, during=during)


@proves(
    "flush-ends-where-pieces-end",
    "after a rebuild, flushes end where waiting pieces do: no row is in two pieces",
    value="{*(published.positions.values() if published is not None else ())}",
)
@pytest.mark.parametrize("how", ["rebuild", pytest.param("index deleted", marks=pytest.mark.full)])
def test_nothing_is_doubled_or_missing_after_a_rebuild_while_pieces_wait(
    bare_node: Node, lake: Path, tmp_path: Path, how: str
) -> None:
    node, files = bare_node.start(), {name: tmp_path / name for name in ("before", "waiting", "after")}
    log_some(node, files["before"], "before")
    wait_for(lake, files["before"])
    away = tmp_path / "away"
    lake.rename(away)
    lake.write_bytes(b"")
    log_some(node, files["waiting"], "waiting", 20_000)
    wait_until(lambda: len(Outbox(node.place.store).ends()) > 1, "pieces that wait")
    # What is in the log and in no piece yet: a flush of the new database may have both.
    os.kill(lock_holder_pid(node.place.index_lock), signal.SIGSTOP)
    log_some(node, files["after"], "after")
    index = lock_holder_pid(node.place.index_lock)
    assert node.collector is not None
    node.collector.kill()
    node.collector.wait()
    os.kill(index, signal.SIGKILL)
    node.stop_agent()
    waiting = Outbox(node.place.store).ends()
    assert waiting
    if how == "rebuild":
        command = [sys.executable, "-P", "-m", "chiplog_cli", "rebuild", "--dir", str(node.root)]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)
    else:
        node.place.index.unlink()
    lake.unlink()
    away.rename(lake)
    node.start()
    wait_for(lake, *files.values())
    stop(node)
    check(lake, **files)
