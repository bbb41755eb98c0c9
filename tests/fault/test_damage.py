"""Damage costs the damaged record; the rest is read, the range is reported. A damaged index is rebuilt.

Random mutations of journals, spools and the collector's log, of DuckDB's file and its write-ahead log. The oracle is
the list of records as they were written: a mutation leaves some of them untouched, and exactly these must come out.
"""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import chiplog_agent.pipeline.spool as spool_module
from chiplog.journal.journal import Journal
from chiplog_agent.pipeline.batcher import EventBatcher
from chiplog_agent.pipeline.spool import DAMAGED, TRIMMED, Spool
from chiplog_agent.ranks.orphan_journals import OrphanJournalCollector
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.index.opening import open_index, quarantine_database
from chiplog_collector.receiver.commit import CommitBuilder
from chiplog_collector.receiver.daemon import ReceiverDaemon, ReceiverSettings
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.events import EventKind, decode, encode
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.query.duckdb_errors import corruption_reason
from chiplog_schemas.storage.journal_dir import HEAD_NAME
from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.record import CorruptRange, Kind, Record
from chiplog_schemas.storage.record import encode as frame
from chiplog_schemas.storage.segment_format import list_segments, log_owner, read_segment
from chiplog_schemas.storage.segment_log import SegmentLog
from chiplog_schemas.storage.watermark import Watermark
from tests.support.blocks import block_to_rows
from tests.support.collector_log import VIEWS, Rank, block_of, contents_of
from tests.support.node import Node
from tests.support.oracle import ORACLE, compare
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.sample_log import everything
from tests.support.waiting import WAIT_S, wait_until

MUTATIONS = 100  # of one file set in one round
RECORDS_OVER_A_HEADER = 141585418  # seeds that found something once
ZEROS_OVER_A_HEADER = 228259739
OWNER = b"O" * 16


# -- the oracle: what was written, and what a mutation left of it ------------------------------------------------------


class Written:
    """The segments of a log as they were written: path -> bytes, and where each record of them lies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: dict[Path, bytes] = {path: path.read_bytes() for _, path in list_segments(directory)}
        self.records: list[tuple[Path, int, int, int, bytes]] = []  # path, start, end, number, payload
        for path in self.files:
            start = 48
            for item in read_segment(path):
                assert isinstance(item, Record), item
                self.records.append((path, start, item.end, item.number, bytes(item.payload)))
                start = item.end
        self.ends = {path: max(e for p, _, e, _, _ in self.records if p == path) for path in self.files}

    def restore(self) -> None:
        for path in set(self.directory.glob("*.seg")) - set(self.files):
            path.unlink()
        for path, data in self.files.items():
            path.write_bytes(data)
        (self.directory / "end").unlink(missing_ok=True)

    def mutate(self, chooser: random.Random) -> tuple[str, list[tuple[int, bytes]], bool]:
        """Damage one file; return (the mutation, the untouched records, whether all other records are gone).

        After records in the wrong place several readings may be right: then the third is False.
        """
        path = chooser.choice(list(self.files))
        data = bytearray(self.files[path])
        end = self.ends[path]
        sound = [(start, stop) for p, start, stop, _, _ in self.records if p == path]
        what = chooser.choice(["flips", "flip", "cut", "zeros", "noise", "double", "swap", "headers", "segment header"])
        strict = True
        if what == "flip":
            data[chooser.randrange(end)] ^= 1 << chooser.randrange(8)
        elif what == "flips":
            for _ in range(chooser.randrange(2, 40)):
                data[chooser.randrange(end)] ^= 1 << chooser.randrange(8)
        elif what == "cut":
            del data[chooser.randrange(end) :]
        elif what in ("zeros", "noise"):
            first = chooser.randrange(end)
            last = min(end, first + chooser.choice([1, 16, 512, 4096]))
            data[first:last] = bytes(last - first) if what == "zeros" else chooser.randbytes(last - first)
        elif what == "double":
            size = min(chooser.choice([64, 512, 1024]), end // 3)
            source, target = chooser.randrange(end - size), chooser.randrange(end - size)
            data[target : target + size] = data[source : source + size]
        elif what == "swap":
            size = min(chooser.choice([64, 512]), end // 4)
            one, other = sorted((chooser.randrange(end // 2 - size), chooser.randrange(end // 2, end - size)))
            data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]
            strict = False
        elif what == "headers":
            for start, _ in chooser.sample(sound, min(len(sound), chooser.randrange(1, 4))):
                at = start + chooser.choice([0, 4, 8, 16])
                data[at : at + 4] = chooser.randbytes(4) if chooser.random() < 0.5 else b"\xff\xff\xff\xff"
        else:
            data[:48] = chooser.randbytes(48)
        path.write_bytes(data)
        original = self.files[path]
        untouched = [
            (number, payload)
            for p, start, stop, number, payload in self.records
            if p != path or (stop <= len(data) and data[start:stop] == original[start:stop])
        ]
        return f"{what} in {path.name}", untouched, strict


def check(
    seed: Any, what: str, found: list[tuple[int, bytes]], untouched: list[tuple[int, bytes]], strict: bool, all_of: Any
) -> None:
    """Nothing altered, nothing doubled, in order; everything untouched is there."""
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers)), (seed, what, "out of order or doubled", numbers)
    altered = [number for number, payload in found if all_of.get(number) != payload]
    assert not altered, (seed, what, "altered", altered)
    missing = [number for number, _ in untouched if number not in set(numbers)]
    if strict:
        assert not missing, (seed, what, "not recovered", missing)
    else:
        assert len(found) >= len(untouched), (seed, what, "not recovered", missing)


# -- logs to damage ----------------------------------------------------------------------------------------------------


def memory_directory(tmp_path: Path) -> Path:
    """Return a directory for thousands of small writes: in memory where there is such a place."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else tmp_path


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    directory = memory_directory(tmp_path) / f"chiplog-damage-{os.getpid()}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


def blocks(n: int = 40) -> list[bytes]:
    """Return blocks of one rank: 3 events each, the first with its identity, the last with its end."""
    rank = Rank(0, run_id="r", label="rank0")
    for step in range(3 * n - 2):
        rank.log(step, loss=step / 8, other=1.0)
    rank.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    return [block_of((rank, 3 * i, 3 * i + 2)) for i in range(n)]


def fill_collectors_log(directory: Path) -> None:
    """Write a log as the receiver does: senders, blocks, receipts, in several segments."""
    intake = CommitBuilder({})
    log = SegmentLog(directory, OWNER, segment_bytes=3000)
    payloads = blocks()
    for at in range(0, len(payloads), 2):
        if log.at_segment_start:
            log.append(Kind.SENDERS, intake.senders_record().payload)
        piece = b"".join(frame(Kind.BLOCK, at + i, payload) for i, payload in enumerate(payloads[at : at + 2]))
        for entry in intake.add_slice(b"S" * 16, at, at + 1, piece):
            assert entry.record is not None
            log.append_record(entry.record)
        log.append(Kind.RECEIPT, intake.receipt_record(at).payload)
        log.commit()
        intake.committed()
    log.close()


def read_all(directory: Path, limit: int, size: int) -> list[Record | CorruptRange]:
    """Follow a log by a LogReader with reads of this size."""
    reader = LogReader(directory)
    items: list[Record | CorruptRange] = []
    while found := reader.read(limit, size):
        items += found
    reader.close()
    return items


@proves("record-checksum-checked", "a record whose checksum does not hold is not read", condition=False)
@proves(
    "misplaced-block-skipped",
    "a block in the wrong place costs none of the records around it",
    part="length == wanted and",
)
@proves(
    "misplaced-segment-start-skipped",
    "misplaced records at a segment's start cost none of the records after them",
    condition=False,
)
@pytest.mark.promise(5)
@pytest.mark.soak
def test_whatever_is_damaged_in_the_collectors_log_all_other_records_come_out(scratch: Path, rounds: Rounds) -> None:
    fill_collectors_log(scratch / "log")
    written = Written(scratch / "log")
    all_of = {number: payload for _, _, _, number, payload in written.records}
    limit = max(all_of) + 1
    assert len(written.files) > 2
    for seed in itertools.chain([RECORDS_OVER_A_HEADER], rounds(4)):
        chooser = random.Random(seed)
        for _ in range(MUTATIONS):
            what, untouched, strict = written.mutate(chooser)
            size = chooser.choice([100, 3000, 1 << 20])
            pair = lambda items: [(item.number, bytes(item.payload)) for item in items if isinstance(item, Record)]  # noqa: E731 - one line
            whole = [item for _, path in list_segments(scratch / "log") for item in read_segment(path)]
            if what.startswith("segment header"):
                assert any(isinstance(item, CorruptRange) for item in whole), (seed, what)
            check(seed, what, pair(whole), untouched, strict, all_of)
            lost = set(all_of) - {number for number, _ in pair(whole)}
            followed = read_all(scratch / "log", limit, 1 << 20 if what.startswith(("double", "swap")) else size)
            check(seed, what, pair(followed), untouched, strict, all_of)
            Watermark(scratch / "log" / "end", writable=True).set(limit)
            log = SegmentLog(scratch / "log", log_owner(scratch / "log") or OWNER)
            assert log.next_number == limit, (seed, what, "a number would be reused")
            log.append(Kind.QUARANTINE, b"new")
            log.commit()
            log.close()
            follow_again = pair(read_all(scratch / "log", log.next_number, 1 << 20))
            assert follow_again[-1] == (log.next_number - 1, b"new"), (seed, what)
            check(seed, what, follow_again[:-1], untouched if strict else [], True, all_of)
            rounds.count("mutations")
            rounds.count("records lost", len(lost))
            written.restore()


@proves("damaged-blocks-declared", "a spool reports which of its blocks are damaged", part=", reason")
@proves(
    "valid-blocks-after-damage",
    "after damaged blocks a spool sends the valid ones",
    value="self._lost_until(self._synced, DAMAGED)",
)
@pytest.mark.soak
def test_whatever_is_damaged_in_a_spool_all_other_blocks_are_sent_and_the_rest_is_said_to_be_gone(
    scratch: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = spool_module.SegmentLog
    monkeypatch.setattr(
        spool_module, "SegmentLog", lambda directory, owner, **_: original(directory, owner, segment_bytes=4000)
    )
    spool = Spool(scratch / "spool", OWNER)
    for payload in blocks():
        spool.append(payload)
        spool.sync()
    spool.close()
    written = Written(scratch / "spool")
    all_of = {number: payload for _, _, _, number, payload in written.records}
    for seed in rounds(4):
        chooser = random.Random(seed)
        for _ in range(MUTATIONS):
            what, untouched, strict = written.mutate(chooser)
            Watermark(scratch / "spool" / "end", writable=True).set(len(all_of))
            spool = Spool(scratch / "spool", OWNER)
            spool.seek(0)
            found: list[tuple[int, bytes]] = []
            told: set[int] = set()
            sizes = [1 << 20] if what.startswith(("double", "swap")) else [100, 5000, 1 << 20]
            while (piece := spool.read(chooser.choice(sizes))) is not None:
                told |= set(range(piece.first, piece.last + 1)) if piece.lost else set()
                at = 0
                while at < len(piece.payload):
                    size = 24 + int.from_bytes(piece.payload[at + 8 : at + 12], "little")
                    number = int.from_bytes(piece.payload[at + 16 : at + 24], "little")
                    found.append((number, bytes(piece.payload[at + 24 : at + size])))
                    at += size
            check(seed, what, found, untouched, strict, all_of)
            gone = set(all_of) - {number for number, _ in found}
            assert told == gone, (seed, what, sorted(told ^ gone))
            spool.append(b"new")
            spool.sync()
            assert spool.read(1 << 20).first == len(all_of), (seed, what, "a number is given out twice")  # type: ignore[union-attr]
            spool.close()
            rounds.count("mutations")
            written.restore()


def make_journal(directory: Path) -> None:
    producer = b"J" * 16
    identity = {"label": "rank0", "run_id": "r"}
    journal = Journal(directory / producer.hex(), producer, pack(identity))
    journal.append(encode(EventKind.IDENTITY, 0, identity))
    for number in range(200):
        journal.append(encode(EventKind.TEXT, number, number, "key", "x" * (number % 90)))
    journal.publish()
    journal.mark_left()  # how much it produced
    journal.close(remove=False)


@proves("resync-after-damage", "after damage the reader searches for the next valid record", value="None")
@proves(
    "zeroed-header-is-read",
    "a journal's segment whose header is zeros is read if anything follows them",
    new="if not any(start):",
)
@pytest.mark.promise(5)
@pytest.mark.soak
def test_whatever_is_damaged_in_a_journal_all_other_events_are_adopted(scratch: Path, rounds: Rounds) -> None:
    """Invariant: each seq that was produced comes out of the agent once, as an event or as declared lost."""
    make_journal(scratch / "made")
    directory = next((scratch / "made").iterdir())
    os.truncate(list_segments(directory)[0][1], 32_768)  # it was allocated ahead: less to copy
    written = Written(directory)
    head = (directory / HEAD_NAME).read_bytes()
    all_of = {number: payload for _, _, _, number, payload in written.records}
    assert len(all_of) == 201
    for seed in itertools.chain([ZEROS_OVER_A_HEADER], rounds(3)):
        chooser = random.Random(seed)
        for _ in range(MUTATIONS):
            what, untouched, strict = written.mutate(chooser)
            head_sound = chooser.random() < 0.8
            if not head_sound:
                damaged = bytearray(head)
                at = chooser.choice([0, 8, 12, 32, 40, 48, 64])
                damaged[at : at + 8] = chooser.randbytes(8)
                (directory / HEAD_NAME).write_bytes(damaged[: chooser.choice([10, 70, 4096])])
            target = scratch / "journals" / directory.name
            shutil.copytree(directory, target)
            core = EventBatcher(b"A" * 16, "node", 1, "0", 0)
            core.build(0)
            adoption = OrphanJournalCollector(scratch / "journals")
            assert adoption.scan({}), (seed, what)
            rows: list[tuple[bytes, int, bytes]] = []
            while adoption.is_busy:
                adoption.drain_into(core, 1.0, 1)
                for block in core.build(1)[0]:
                    rows += list(block_to_rows(decode_block(block)))
            adoption.on_spool_synced()
            assert not target.exists(), (seed, what)
            found = [(seq, payload) for producer, seq, payload in rows if producer == b"J" * 16]
            if head_sound:
                check(seed, what, found, untouched, strict, all_of)
                said = [decode(payload) for producer, _, payload in rows if producer == b"A" * 16]
                lost = [n for event in said if event[0] == EventKind.LOST for n in range(event[3], event[4] + 1)]
                assert sorted([*lost, *(seq for seq, _ in found)]) == sorted(all_of), (seed, what)
            else:  # a damaged page may declare everything acknowledged; the delivered events are still the written ones
                check(seed, what, found, [], True, all_of)
            rounds.count("mutations")
            written.restore()
            (directory / HEAD_NAME).write_bytes(head)


# -- the index ---------------------------------------------------------------------------------------------------------


def collector_of(root: Path, n_steps: int = 10) -> Paths:
    """Make a collector's directory: a log with everything in it, synced, and no index yet."""
    place = paths_for_root(root)
    ensure_private_dir(place.collector)
    ensure_private_dir(place.run)
    log = SegmentLog(place.collector / "log", OWNER)
    for payload in everything(n_steps=n_steps):
        kind, content = payload if isinstance(payload, tuple) else (Kind.BLOCK, payload)
        log.append(kind, content)
        log.append(Kind.RECEIPT, pack([1_795_000_000_000_000 + log.next_number, []]))
        log.commit()
    Watermark(place.collector / "synced", writable=True).set(log.next_number)
    log.close()
    return place


def live(place: Paths, then: Callable[[LogFollower], None] = lambda follower: None) -> dict[str, list[str]] | str:
    """Open, catch up, ask for everything, as the index process does; or the damage for which the file was set aside."""
    limit = Watermark(place.collector / "synced", writable=False).get()
    follower = open_index(place, lambda wait_s: pytest.fail("the file is waited for"))
    assert follower is not None
    try:
        while follower.database.next_number < limit:
            before = follower.database.next_number
            follower.step(limit)
            assert follower.database.next_number > before, "the position must move"
        sql = lambda query: follower.database.connection.execute(query).fetchall()  # noqa: E731 - one line
        found = {view: contents_of(sql, view) for view in VIEWS}
        then(follower)
        return found
    except duckdb.Error as error:
        damage = corruption_reason(error)
        assert damage, error
    finally:
        follower.database.close()
    quarantine_database(place.index, damage)
    return damage


def harm(place: Paths, files: dict[str, bytes], chooser: random.Random) -> str:
    """Do something to the index's files, or to one of them, and return what."""
    name = chooser.choice(list(files))
    path = place.collector / name
    data = bytearray(files[name])
    what = chooser.choice(["flips", "cut", "header", "garbage", "deleted", "all deleted", "zeros"])
    if what == "flips":
        for _ in range(chooser.randrange(1, 200)):
            data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
    elif what == "cut":
        del data[chooser.randrange(len(data)) :]
    elif what == "header":
        data[:12288] = chooser.randbytes(min(12288, len(data)))
    elif what == "garbage":
        data = bytearray(chooser.randbytes(chooser.choice([0, 7, 5000, 300_000])))
    elif what == "zeros":
        first = chooser.randrange(len(data))
        data[first : first + 8192] = bytes(len(data[first : first + 8192]))
    if what in ("deleted", "all deleted"):
        path.unlink()
        if what == "all deleted":
            for other in files:
                (place.collector / other).unlink(missing_ok=True)
    else:
        path.write_bytes(data)
    return f"{what}: {name}"


@proves("damaged-database-rebuilt", "a damaged DuckDB file is set aside and rebuilt", new="raise")
@pytest.mark.promise(5)
@pytest.mark.soak
def test_whatever_happens_to_duckdbs_files_the_same_rows_are_answered(tmp_path: Path, rounds: Rounds) -> None:
    """Invariant: after at most two damages, every view holds what it held; at most two files were set aside."""
    place = collector_of(tmp_path / "chiplog")
    other = collector_of(tmp_path / "other", n_steps=2)
    files: dict[str, bytes] = {}
    foreign: dict[str, bytes] = {}

    def keep(into: dict[str, bytes], where: Paths) -> Callable[[LogFollower], None]:
        return lambda _: into.update({path.name: path.read_bytes() for path in where.collector.glob("index.duckdb*")})

    before = live(place, keep(files, place))  # while it is open: with its write-ahead log
    assert isinstance(before, dict)
    live(other, keep(foreign, other))
    assert set(files) == {"index.duckdb", "index.duckdb.wal"}
    closed = {"index.duckdb": place.index.read_bytes()}
    for seed in rounds(1):
        chooser = random.Random(seed)
        for old in place.collector.glob("index*"):
            old.unlink()
        start = chooser.choice([files, closed])
        for name, content in start.items():
            (place.collector / name).write_bytes(content)
        what = chooser.choice(["harm", "harm", "harm", "harm", "foreign log", "foreign file", "older"])
        if what == "harm":
            what = harm(place, start, chooser)
        elif what == "foreign log":
            (place.collector / "index.duckdb.wal").write_bytes(foreign["index.duckdb.wal"])
        elif what == "foreign file":
            place.index.write_bytes(foreign["index.duckdb"])
        else:  # of before the write-ahead log was folded in: it knows nothing of the rows yet
            place.index.write_bytes(files["index.duckdb"])
        for _ in range(3):
            found = live(place)
            if not isinstance(found, str):
                break
            rounds.count("damages met by a query or a flush")
        assert found == before, (seed, what)
        aside = {path.name.removesuffix(".wal") for path in place.collector.glob("index.duckdb.set-aside-*")}
        assert len(aside) <= 2, (seed, what)
        rounds.count("files set aside", len(aside))


@proves("unknown-end-skips-numbers", "if the last assigned number is unknown, many numbers are skipped", value="0")
def test_a_log_that_lost_its_end_and_the_word_of_it_takes_new_events_all_the_same(tmp_path: Path) -> None:
    """The index has seen numbers that the log reuses: it must not mistake the new records for the old ones."""
    place = collector_of(tmp_path / "chiplog")
    assert isinstance(live(place), dict)
    path = list_segments(place.collector / "log")[-1][1]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (place.collector / "log" / "end").unlink()
    (place.collector / "synced").unlink()
    daemon = ReceiverDaemon(
        ReceiverSettings(place, bind=[place.collector_address], query=[place.query_address]), with_index=False
    )
    rank = Rank(77, run_id="later")
    rank.log(5, new=1.0)
    daemon.log.append(Kind.BLOCK, block_of((rank, 0, 1)))
    daemon.log.append(Kind.RECEIPT, pack([1_795_000_000_000_000, []]))
    daemon.log.commit()
    daemon._synced_watermark.set(daemon.log.next_number)
    daemon.close()
    process = subprocess.run(
        [sys.executable, "-P", "-m", "chiplog_collector.index", str(place.root)],
        stdin=subprocess.DEVNULL,
        timeout=WAIT_S,
    )
    assert process.returncode == 0
    with duckdb.connect(str(place.index), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM metrics WHERE run_id = 'later'").fetchall() == [(1,)]


@proves("lost-end-numbers-not-reused", "numbers of a lost end are not reused")
@pytest.mark.parametrize("what", ["cut in a record", "cut to nothing"])
def test_a_spool_that_lost_its_end_says_so_and_gives_out_no_number_twice(tmp_path: Path, what: str) -> None:
    spool = Spool(tmp_path / "spool", OWNER)
    for payload in blocks(6):
        spool.append(payload)
        spool.sync()
    spool.close()
    path = list_segments(tmp_path / "spool")[-1][1]
    path.write_bytes(path.read_bytes()[: 48 if what == "cut to nothing" else -10])
    again = Spool(tmp_path / "spool", OWNER)
    again.append(b"new")
    again.sync()
    again.seek(0)
    pieces = [again.read(1 << 20) for _ in range(2 if what == "cut to nothing" else 3)]
    lost, new = pieces[-2:]
    assert lost is not None
    assert new is not None
    assert (lost.first, lost.last) == (0 if what == "cut to nothing" else 5, 5)
    assert lost.lost in (DAMAGED, TRIMMED)
    assert (new.first, new.lost) == (6, "")
    again.seek(6)  # the collector has acknowledged what was there: nothing is lost
    assert again.read(1 << 20).first == 6  # type: ignore[union-attr]
    again.close()


# -- real processes ----------------------------------------------------------------------------------------------------


def rank_to_its_end(node: Node, file: Path, events: int = 400) -> None:
    command = [sys.executable, "-P", ORACLE, str(file), "--events", str(events), "--pause-s", "0.004"]
    environment = os.environ | {"CHIPLOG_DIR": str(node.root)}
    subprocess.run([*command, "--label", "rank0", "--run-id", "r"], env=environment, check=True, timeout=WAIT_S)


def settled(node: Node, file: Path, seed: int) -> None:
    """Wait until what is known of the run adds up, and compare it with the oracle."""
    [row] = node.until(
        "SELECT c.* FROM completeness c JOIN labels l USING (run_id, label, attempt) "
        "WHERE run_id = 'r' AND l.state = 'finished'",
        lambda rows: len(rows) == 1 and rows[0]["pending"] == 0,
    )
    rows = node.sql("SELECT step, value FROM metrics WHERE run_id = 'r' AND key = 'value'")
    verdict = compare(file, rows, lost=row["lost"])
    assert not (verdict.doubled or verdict.altered or verdict.extra), (seed, verdict)
    assert len(verdict.lost) <= row["lost"], (seed, verdict, row)
    assert row["produced"] == row["stored"] + row["lost"], (seed, row)


def damage_blocks(directory: Path, chooser: random.Random, protect: int) -> int:
    """Flip a bit in some blocks, never in the first or the last ones; return how many."""
    n_damaged = 0
    for _, path in list_segments(directory):
        data = bytearray(path.read_bytes())
        start, found = 48, []
        for item in read_segment(path):
            if isinstance(item, Record) and item.kind == Kind.BLOCK:
                found.append((start, item.end))
            start = item.end
        for begin, end in chooser.sample(found[protect:-protect], min(3, max(0, len(found) - 2 * protect))):
            data[chooser.randrange(begin, end)] ^= 1 << chooser.randrange(8)
            n_damaged += 1
        path.write_bytes(data)
    return n_damaged


@proves("missing-records-settled", "records that are missing are settled when their producer has ended")
@pytest.mark.full
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_collector_started_on_a_damaged_log_answers_all_the_rest_and_declares_the_loss(
    tmp_path: Path, bare_node: Node, rounds: Rounds
) -> None:
    node = bare_node.start()
    file = tmp_path / "oracle"
    rank_to_its_end(node, file)
    settled(node, file, 0)
    node.stop()
    sound = tmp_path / "sound"
    shutil.copytree(node.place.collector, sound)
    for seed in rounds(1):
        chooser = random.Random(seed)
        shutil.rmtree(node.place.collector)
        shutil.copytree(sound, node.place.collector)
        for path in node.place.collector.glob("index.duckdb*"):
            path.unlink()
        n_damaged = damage_blocks(node.place.collector / "log", chooser, protect=3)
        assert n_damaged, seed
        rounds.count("blocks damaged", n_damaged)
        node.start_collector()
        node.until("SELECT count(*) AS n FROM events WHERE kind = 'quarantined'", lambda rows: rows[0]["n"] > 0)
        settled(node, file, seed)
        assert node.sql("SELECT sum(lost) AS n FROM completeness")[0]["n"] > 0, seed
        assert lock_holder_pid(node.place.collector / "lock") == node.collector.pid, (seed, "it was restarted")  # type: ignore[union-attr]
        node.stop_collector()
        assert "index ended with exit status" not in node.output("chiplog_collector"), seed


@proves("lost-blocks-declared", "an agent declares to the collector which of its blocks can never arrive")
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.full
def test_an_agent_started_on_a_damaged_spool_sends_all_the_rest_and_the_loss_is_declared(
    tmp_path: Path, bare_node: Node, rounds: Rounds
) -> None:
    node = bare_node
    node.start_agent()
    file = tmp_path / "oracle"
    rank_to_its_end(node, file)
    wait_until(lambda: not any(node.place.journals.iterdir()), "all journals in the spool")
    node.stop_agent()
    sound = tmp_path / "sound"
    shutil.copytree(node.place.agent, sound)
    for seed in rounds(1):
        chooser = random.Random(seed)
        for directory, content in ((node.place.agent, sound), (node.place.collector, None)):
            shutil.rmtree(directory, ignore_errors=True)
            if content is not None:
                shutil.copytree(content, directory)
        n_damaged = damage_blocks(node.place.agent / "spool", chooser, protect=3)
        assert n_damaged, seed
        rounds.count("blocks damaged", n_damaged)
        node.start_agent()
        node.start_collector()
        node.until("SELECT count(*) AS n FROM events WHERE kind = 'gap'", lambda rows: rows[0]["n"] > 0)
        settled(node, file, seed)
        assert node.agent is not None
        assert node.agent.poll() is None, seed
        node.stop()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_small_files_damaged_or_deleted_stop_nobody(tmp_path: Path, bare_node: Node) -> None:
    """`synced`, `host` and the lock's content: wrong, cut or gone, while the collector is stopped and while it runs."""
    node = bare_node.start()
    rank_to_its_end(node, tmp_path / "oracle", events=50)
    settled(node, tmp_path / "oracle", 0)
    synced = node.place.collector / "synced"
    synced.write_bytes(b"")  # while it runs: cut, then gone, and the index with it
    synced.unlink()
    receiver = node.collector
    assert receiver is not None
    [index] = Path(f"/proc/{receiver.pid}/task/{receiver.pid}/children").read_text().split()
    os.kill(int(index), signal.SIGKILL)
    rank_to_its_end(node, tmp_path / "again", events=50)
    node.until("SELECT count(*) AS n FROM labels", lambda rows: rows[0]["n"] == 2)
    assert receiver.poll() is None
    for content in (b"\xff" * 4096, b"\x00\xff\xff\xff\xff\xff\xff\x00" * 512, b"", b"\x01", None):
        node.stop_collector()
        for name in ("synced", "host", "lock"):
            path = node.place.collector / name
            path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
        node.start_collector()
        wait_until(lambda: synced.exists() and synced.stat().st_size >= 4096, "a collector that publishes its position")
        node.until("SELECT count(*) AS n FROM labels", lambda rows: rows[0]["n"] == 2)
    assert log_end(node.place) < 10_000, "a damaged number is not believed"


def log_end(place: Paths) -> int:
    return Watermark(place.collector / "synced", writable=False).get()


@proves("watermark-checked", "the synced position of the log is checked", new="if number >= 0:")
def test_a_damaged_word_on_how_far_the_log_is_synced_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "synced"
    Watermark(path, writable=True).set(1_000)
    whole = path.read_bytes()
    for at in range(12):
        for bit in range(8):
            reader = Watermark(path, writable=False)
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            assert reader.get() == 1_000, "the one before"
            assert not Watermark(path, writable=False).is_valid
            path.write_bytes(whole)
