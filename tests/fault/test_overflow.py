"""Overflow at every bound: produced = stored + declared lost, exactly, with the reason in `completeness` or `events`.

Training never raises and never waits long. Variables make the bounds small (`chiplog_schemas.limit_settings`).
"""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog.journal.journal import Journal
from chiplog.journal.sender import SenderThread
from chiplog_client.client import QueryError
from chiplog_schemas.codec import pack, unpack
from chiplog_schemas.limit_settings import RANGES
from chiplog_schemas.limits import EVENT_BYTES_MAX, KEY_BYTES_MAX, NAME_CHARS_MAX, RECORD_BYTES_MAX
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.storage.journal_dir import JournalReader, list_journals
from chiplog_schemas.storage.record import Record
from tests.support.disk.faults import LONG_MS, FaultyNode, Rank, settled
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

MIB = 1 << 20


@pytest.fixture
def small_node(tmp_path: Path) -> Iterator[FaultyNode]:
    """A node that is not started yet, with little credit and few queries at once."""
    credit = {"CHIPLOG_CREDIT_BYTES": str(64 << 10)}
    queries = {"CHIPLOG_QUERIES_AT_ONCE": "1", "CHIPLOG_QUERIES_WAITING_MAX": "1", "CHIPLOG_QUERY_TIMEOUT_S": "1"}
    with FaultyNode(tmp_path / "chiplog", credit, credit | queries) as node:
        yield node


def check_overflown(node: Node, rank: Rank, n_logged: int) -> None:
    """The oldest and the newest are there; what lies between is declared, with the events that declare it."""
    verdict, row = settled(node, rank, lost=True)
    assert verdict.expected == n_logged
    assert 0 < len(verdict.lost) < n_logged
    # Of what was dropped all are values of the oracle, but for a notice or two that found no room either.
    assert len(verdict.lost) <= row["lost"] <= len(verdict.lost) + 3, row
    assert row["produced"] == rank.produced
    assert row["state"] == "finished"
    assert "journal full" in row["reasons"]
    assert n_logged - 1 not in verdict.lost, "there was room again"
    assert rank.longest_ms < LONG_MS
    assert node.sql("SELECT * FROM events WHERE kind = 'lost' AND label = ?", [rank.label])


@proves("journal-quota", "the journal's quota", value="1 << 40")
@proves(
    "dropped-range-whole", "what was dropped is declared to its last event", part="seq - 1", new="layout.drop_first"
)
@proves("drop-declared-with-room", "what was dropped is declared once there is room", condition=True)
@pytest.mark.promise(4)
def test_a_full_journal_on_disk_and_one_in_memory_declare_what_they_dropped(
    small_node: FaultyNode, tmp_path: Path, started: list[Rank]
) -> None:
    """No agent listens until both are full. Dropped events are declared once there is room, not by the next log()."""
    agent = {"CHIPLOG_AGENT": small_node.place.agent_address}
    (tmp_path / "no directory").write_text("")
    quotas = {"CHIPLOG_JOURNAL_BYTES_MAX": str(MIB), "CHIPLOG_JOURNAL_MEMORY_BYTES_MAX": str(MIB)}
    on_disk = Rank(tmp_path / "disk", small_node.root, "disk", **quotas, **agent)
    in_memory = Rank(tmp_path / "memory", tmp_path / "no directory" / "chiplog", "memory", **quotas, **agent)
    started += [on_disk, in_memory]
    for rank in started:
        rank.ready().log(20_000)
    sizes = [sum(f.stat().st_size for f in path.glob("*.seg")) for _, path in list_journals(small_node.place.journals)]
    assert sizes
    assert max(sizes) <= MIB
    small_node.start()
    for rank in started:
        declared = f"SELECT * FROM events WHERE kind = 'lost' AND label = '{rank.label}'"
        wait_until(lambda declared=declared: small_node.try_sql(declared), "a loss that is declared")
        rank.log(10)
        rank.finish()
    for rank in started:
        check_overflown(small_node, rank, 20_010)


@proves("full-spool-withholds-credit", "a full spool withholds credit", part="0 if self._spool.is_full else")
@pytest.mark.promise(4)
@pytest.mark.full
def test_a_collector_that_stands_still_fills_credit_spool_and_journal_in_turn_and_only_the_journal_drops(
    small_node: FaultyNode, tmp_path: Path, started: list[Rank]
) -> None:
    small_node.start("--spool-bytes-max", str(MIB))
    assert small_node.collector is not None
    quota = {"CHIPLOG_JOURNAL_BYTES_MAX": str(MIB), "CHIPLOG_AGENT": small_node.place.agent_address}
    rank = Rank(tmp_path / "oracle", small_node.root, **quota)
    started.append(rank)
    rank.ready().log(100)
    small_node.collector.send_signal(signal.SIGSTOP)
    try:
        n_logged = 100

        def journal_is_full() -> bool:
            nonlocal n_logged
            rank.log(5000)
            n_logged += 5000
            used = sum(f.stat().st_size for f in small_node.place.journals.glob("*/*.seg"))
            spooled = sum(f.stat().st_size for f in (small_node.place.agent / "spool").glob("*.seg"))
            return spooled >= MIB and used >= MIB // 2 and n_logged >= 60_000

        wait_until(journal_is_full, "a journal that is full because the spool is")
        for _ in range(10):  # the journal has more than fits, the spool accepts no more: except what was in flight
            rank.log(5000)
            n_logged += 5000
            time.sleep(0.15)
            spooled = sum(f.stat().st_size for f in (small_node.place.agent / "spool").glob("*.seg"))
            assert spooled < 1.5 * MIB
    finally:
        small_node.collector.send_signal(signal.SIGCONT)

    first = n_logged

    def goes_on() -> bool:
        nonlocal n_logged
        rank.log(1)
        n_logged += 1
        return bool(small_node.try_sql(f"SELECT max(step) AS n FROM metrics HAVING n >= {first}"))

    wait_until(goes_on, "events that arrive again")
    rank.finish()
    check_overflown(small_node, rank, n_logged)
    assert "samples" not in small_node.output()


@proves("large-call-split", "a call that makes a larger event is split", new="if len(payload) <= 1 << 22:")
@pytest.mark.parametrize(("bound", "key_chars", "n_keys"), [("4096", 8, 1000), ("", 200, 9000)], ids=["4 KiB", "1 MiB"])
def test_an_event_larger_than_its_bound_is_split_each_time_it_is_logged(
    chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch, bound: str, key_chars: int, n_keys: int
) -> None:
    """The second call with the same keys uses another code path than the first."""
    monkeypatch.setenv("CHIPLOG_EVENT_BYTES_MAX", bound)
    run = chiplog.init(mode="offline", capture_console=False, config={f"c{n}": "x" * 50 for n in range(200)})
    for step in range(3):
        run.log({f"{n}".rjust(key_chars, "k"): float(step) for n in range(n_keys)}, step=step)
    run.log({"histogram": chiplog.Histogram(tuple(range(80_001)), (1.0,) * 80_000)})
    run.finish()
    counts: Counter[int] = Counter()
    ((_, directory),) = list_journals(chiplog_dir / "offline")
    notices = []
    for item in JournalReader(directory).records():
        assert isinstance(item, Record)
        assert len(item.payload) <= int(bound or EVENT_BYTES_MAX)
        event = unpack(item.payload)
        if event[0] == EventKind.METRICS:
            counts[event[2]] += len(unpack(event[3]))
        elif event[0] == EventKind.NOTICE:
            notices.append(event[5]["kind"] if "kind" in event[5] else event[2])
        assert event[0] != EventKind.LOST
    assert counts == dict.fromkeys(range(3), n_keys)
    assert notices == ["event_too_large", "bad_values"], "the histogram is too large, and that is a row in `events`"


@proves("large-event-declared", "an event that is too large is refused and declared")
def test_events_and_records_beyond_what_a_peer_may_send_are_declared_lost(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a foreign or broken SDK would send them; chiplog's does not."""
    monkeypatch.setattr(
        "chiplog_schemas.storage.record.RECORD_BYTES_MAX", 2 * RECORD_BYTES_MAX
    )  # here, and not in the agent
    producer = os.urandom(16)
    identity = {"role": "rank", "run_id": "big", "label": "rank0", "started_at": 1}
    journal = Journal(node.place.journals / producer.hex(), producer, pack(identity))
    journal.append(encode(EventKind.IDENTITY, 1, identity))
    for step, size in enumerate((10, EVENT_BYTES_MAX + 1, 10, RECORD_BYTES_MAX + 1, 10)):
        journal.append(encode(EventKind.TEXT, 1, step, "text", "x" * size))
    journal.append(encode(EventKind.STATE, 1, {"state": "finished"}))
    journal.publish()
    journal.mark_finished()
    sender = SenderThread(
        journal, node.place, identity, agent_address=None, online=True, on_tick=lambda: None, warn=print
    )
    sender.start()
    sender.stop(5.0)
    journal.close(remove=False)
    (row,) = node.until(
        "SELECT * FROM completeness WHERE run_id = 'big'", lambda rows: rows[0]["stored"] + rows[0]["lost"] == 7
    )
    assert (row["produced"], row["stored"], row["lost"], row["pending"]) == (7, 5, 2, 0)
    assert f"exceeds the limit of {EVENT_BYTES_MAX}" in row["reasons"]
    assert [entry["step"] for entry in node.sql("SELECT step FROM texts ORDER BY step")] == [0, 2, 4]


@proves("line-rate-bounded", "lines above the rate are dropped and counted", new="if not self._has_room():")
@proves("keys-bounded", "keys beyond the bound are left out and counted", new="if key:")
def test_names_keys_and_lines_beyond_their_bounds_are_counted_in_events(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setenv("CHIPLOG_KEYS_MAX", "10")
    monkeypatch.setenv("CHIPLOG_CONSOLE_BURST_LINES", "100")
    monkeypatch.setenv("CHIPLOG_CONSOLE_LINES_PER_S", "1")
    run = chiplog.init(dir=node.root, run_id="r" * 200, label="l" * 200)
    assert [len(run.id), len(run.label)] == [NAME_CHARS_MAX, NAME_CHARS_MAX]
    assert (run.id[:100], run.label[:100]) == ("r" * 100, "l" * 100)
    for number in range(500):
        print(f"line {number}")
    run.log({"k" * (KEY_BYTES_MAX + 1): 1.0, "text": "x" * 70_000, "key 0": 2.0})
    for number in range(30):
        run.log({f"key {number}": 1.0})
    produced_before = run._journal.next_seq
    run.finish()
    (row,) = node.until("SELECT * FROM completeness", lambda rows: rows[0]["pending"] == 0)
    assert row["lost"] == 0
    assert row["produced"] == row["stored"] >= produced_before
    (counted,) = node.until("SELECT body FROM events WHERE kind = 'bad_values' ORDER BY seq DESC LIMIT 1")
    for part in ('"too_many_keys":20', '"key_length":1', '"text_too_long":1'):
        assert part in counted["body"].replace(" ", ""), counted
    bad = {entry["kind"] for entry in node.sql("SELECT json_extract_string(body, 'kind') AS kind FROM events")}
    assert {"too_many_keys", "key_length", "text_too_long"} <= bad
    (shown,) = node.sql("SELECT count(*) AS n, max(line_no) AS last FROM console")
    (lost,) = node.sql(
        "SELECT sum(CAST(json_extract_string(body, 'lines') AS INT)) AS n FROM events WHERE kind = 'console_lost'"
    )
    assert 100 <= shown["n"] < 500
    assert shown["n"] + lost["n"] == 500


@proves(
    "waiting-queries-bounded",
    "a longer queue of questions answers busy",
    part="self._limits.queries_waiting_max",
    new="1000",
)
@pytest.mark.full
def test_more_questions_than_may_wait_are_answered_busy_and_slow_ones_end_in_time(
    small_node: FaultyNode, tmp_path: Path, started: list[Rank]
) -> None:
    small_node.start()
    rank = Rank(tmp_path / "oracle", small_node.root, CHIPLOG_AGENT=small_node.place.agent_address)
    started.append(rank)
    rank.ready().log(100)
    kinds: Counter[str] = Counter()

    def ask() -> None:
        try:
            with chiplog.connect(dir=small_node.root) as client:
                client.sql("SELECT count(*) FROM range(1000000) a, range(1000000) b")
        except QueryError as error:
            kinds[error.kind] += 1

    askers = [threading.Thread(target=ask) for _ in range(6)]
    begun = time.monotonic()
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(WAIT_S)
    assert sum(kinds.values()) == 6
    assert kinds["busy"] >= 1
    assert kinds["timeout"] >= 1
    assert set(kinds) == {"busy", "timeout"}
    assert time.monotonic() - begun < 60
    rank.finish()
    assert settled(small_node, rank)[0].ok


@pytest.mark.parametrize("module", ["chiplog_agent", "chiplog_collector"])
def test_a_daemon_names_a_bad_bound_and_does_not_start(tmp_path: Path, module: str) -> None:
    environment = {**os.environ, "CHIPLOG_CREDIT_BYTES": "1 GB"}
    command = [sys.executable, "-P", "-m", module, "--dir", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    least, most = RANGES["CHIPLOG_CREDIT_BYTES"]
    assert f"CHIPLOG_CREDIT_BYTES='1 GB' is not a whole number from {least} to {most}" in line
