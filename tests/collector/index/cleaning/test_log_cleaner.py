"""The log without deleted data: smaller, and a rebuild from it is the database that there was."""

import contextlib
import errno
import hashlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from chiplog_collector.index.cleaning import log_cleaner
from chiplog_collector.index.cleaning.log_cleaner import (
    CLEANED_NAME,
    LogCleaner,
    Removal,
    clean_segment,
    remove_contents,
    restore_set_aside,
)
from chiplog_collector.index.database import Database
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.receiver.file_store import ContentStored, FileStore
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import CONTENT_AGE_S
from chiplog_schemas.model.change_record import Action
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.content_files import content_path
from chiplog_schemas.storage.record import Kind, Record
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from tests.support.changes import at_once_and_one_by_one, change, deletion, logged
from tests.support.collector_log import LOG_ID, START_US, Rank, whole
from tests.support.days import DAYS, history, take_on
from tests.support.index import Index, copy_of, empty_database
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves
from tests.support.sample_log import everything


def take_each(index: Index, *payloads: Any) -> None:
    """Log payloads, each with a commit of its own, in small segments."""
    index.log._segment_bytes = 4096
    for payload in payloads:
        index.take(payload)


def clean(index: Index, removal: Removal) -> int:
    return sum(clean_segment(path, removal) for _, path in list_segments(index.directory / "log")[:-1])


def removal_of(index: Index) -> Removal:
    state = index.follower.state
    return Removal(frozenset(state.deleted), max(state.last_deletion, state.trimmed[0]), *state.trimmed)


def rebuilt(index: Index) -> dict[str, list[str]]:
    """Return all views of a database that is built from the log as it is now."""
    path = index.directory / "rebuilt.duckdb"
    path.unlink(missing_ok=True)
    database = empty_database(path)
    follower = LogFollower(database, index.directory / "log")
    while database.next_number < index.log.next_number:
        follower.step(index.log.next_number)
    database.close()
    return copy_of(index, path.name)


@proves(
    "receipts-keep-counts",
    "an emptied record keeps its place, so that receipts cover what they covered",
    value="Kind.BLOCK",
)
def test_a_rebuild_from_a_cleaned_log_is_the_database_that_there_was(index: Index) -> None:
    agent = Rank(40, label="agent", role="agent", node="node-z")
    for second in range(300):
        agent.say(EventKind.SYSTEM, "", pack(["hw.x"]), bytes(8), ts=START_US + second * 1_000_000)
    other = logged(50, 50, run_id="other", primary=True)
    take_each(index, *everything()[:-1], whole(agent), whole(other))
    gone = [p.uuid for p in index.follower.state.producers.values() if p.uuid not in (other.uuid, agent.uuid)]
    take_each(index, change(Action.DELETE, 1, producers=gone, runs=["r"]))
    # A launch that needed another name keeps it, although the run that had the name is gone.
    take_each(index, change(Action.TRIM_SYSTEM, 2, until=START_US + 200_000_000))
    take_each(index, whole(logged(60, run_id="r", primary=True)), whole(other))
    before = index.views()
    assert before["system_samples"] != []
    freed = clean(index, removal_of(index))
    size = sum(path.stat().st_size for _, path in list_segments(index.directory / "log"))
    assert freed > size, "most of the log was of the deleted run"
    assert rebuilt(index) == before
    assert clean(index, removal_of(index)) == 0, "once is enough"
    kinds = [item.kind for _, path in list_segments(index.directory / "log") for item in read_segment(path)]
    assert Kind.PRUNED in kinds


def test_a_name_that_a_deleted_run_had_is_decided_the_same_in_a_rebuild(index: Index) -> None:
    first = logged(0, 200, launch="first")
    second = logged(1, 3, launch="second", resume="never", label="rank0", rank=0, primary=True)
    take_each(index, whole(first), whole(second), deletion(first), *(whole(logged(n, 60)) for n in range(10, 14)))
    assert index.sql("SELECT DISTINCT run_id FROM labels ORDER BY ALL") == [("r",), ("r-2",)]
    before = index.views()
    assert clean(index, removal_of(index)) > 0
    assert rebuilt(index) == before


@proves("thinning-ends-flush", "what is removed of samples does not depend on where a flush ends", condition=False)
def test_late_samples_and_those_of_one_flush_are_trimmed_the_same_way_however_flushes_fall(tmp_path: Path) -> None:
    early, late = (Rank(n, label="agent", role="agent", node=f"node-{n}") for n in (40, 41))
    for agent in (early, late):
        for second in range(4):
            agent.say(EventKind.SYSTEM, "", pack(["hw.x"]), bytes(8), ts=START_US + second * 1_000_000)
    payloads = [whole(early), change(Action.TRIM_SYSTEM, 1, until=START_US + 2_000_000), whole(late)]
    counts = "SELECT node, count(*) FROM system_samples GROUP BY ALL ORDER BY ALL"
    found = at_once_and_one_by_one(tmp_path, payloads, lambda index: index.sql(counts))
    assert found == [[("node-40", 2), ("node-41", 4)]] * 2


@proves("damaged-segment-stays", "a segment with damage is not rewritten: a rebuild reports the damage", new="continue")
def test_a_segment_with_damage_stays_as_it_is(index: Index) -> None:
    rank = logged(0, 300)
    take_each(index, *(whole(logged(n, 100, run_id="r")) for n in range(1, 6)), whole(rank), deletion(rank))
    take_each(index, *(whole(logged(n, 60, run_id="s")) for n in range(10, 14)))
    for _, path in list_segments(index.directory / "log")[:-1]:
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
        removal = Removal(frozenset(index.follower.state.producers), 1 << 40)
        assert clean_segment(path, removal) == 0
        assert path.read_bytes() == data


def test_the_newest_segment_is_left_to_its_writer_until_it_is_sealed(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cleaner, "PAUSE_S", 0.0)
    rank = logged(0, 40)
    take_each(index, whole(rank), deletion(rank))
    files = tmp_path / "files"
    cleaner = LogCleaner(index.directory / "log", files)

    def turn() -> int:
        cleaner.turn(index.follower.state, list, time.monotonic())
        if cleaner._thread is not None:
            cleaner._thread.join()
        return sum(path.stat().st_size for _, path in list_segments(index.directory / "log"))

    cleaner._sweep_at = time.monotonic() + 1000
    last = list_segments(index.directory / "log")[-1][1].read_bytes()
    turn()
    assert list_segments(index.directory / "log")[-1][1].read_bytes() == last
    take_each(index, *(whole(logged(n, 60, run_id="s")) for n in range(10, 14)))
    before = sum(path.stat().st_size for _, path in list_segments(index.directory / "log"))
    assert turn() < before
    assert (index.directory / CLEANED_NAME).exists()
    cleaner.close()
    kept = [path.read_bytes() for _, path in list_segments(index.directory / "log")]
    again = LogCleaner(index.directory / "log", files)
    again._sweep_at = time.monotonic() + 1000
    again.turn(index.follower.state, list, time.monotonic())
    assert again._thread is None, "all of it was cleaned, and that is known after a restart"
    again.close()
    assert kept == [path.read_bytes() for _, path in list_segments(index.directory / "log")]


def name_content(rank: Rank, kind: EventKind, name: str) -> None:
    """Save a file or log an image: an event that names a content of five bytes."""
    digest = name.encode() * 32
    fields = (name, 5, digest) if kind == EventKind.FILE else (0, name, "image", digest, 5, "{}")
    rank.say(kind, *fields)


KINDS = pytest.mark.parametrize("kind", [EventKind.FILE, EventKind.MEDIA])


@proves(
    "only-orphans-removed",
    "a content that some row names is not removed",
    new='return [digest for (digest,) in self.connection.execute("SELECT sha256 FROM base.orphans").fetchall()]',
)
@KINDS
def test_only_contents_that_no_row_names_are_orphans(index: Index, kind: EventKind) -> None:
    gone, kept = Rank(1, run_id="gone"), Rank(2, run_id="kept")
    for rank, names in ((gone, "ab"), (kept, "bc")):
        for name in names:
            name_content(rank, kind, name)
    index.take(whole(gone, kept), (Kind.STORED, pack([b"S" * 16, b"d" * 32, 5])))
    assert index.database.orphaned_contents() == [b"d".hex() * 32]
    index.take(deletion(gone, run="gone"))
    expected = [b"a".hex() * 32, b"d".hex() * 32]  # b is named by a row; d may have come before its row: it is young
    assert sorted(index.database.orphaned_contents()) == expected


@KINDS
def test_a_database_rebuilt_from_a_cleaned_log_knows_the_orphans(index: Index, kind: EventKind) -> None:
    gone, kept = Rank(1, run_id="gone"), Rank(2, run_id="kept")
    for rank, name in ((gone, "a"), (kept, "b")):
        name_content(rank, kind, name)
    stored = [(Kind.STORED, pack([b"S" * 16, name * 32, 5])) for name in (b"a", b"b")]
    take_each(index, whole(gone), whole(kept), *stored, deletion(gone, run="gone"), whole(logged(3, 400, run_id="s")))
    take_each(index, whole(logged(4, 400, run_id="s")))
    assert index.database.orphaned_contents() == [b"a".hex() * 32]
    assert clean(index, removal_of(index)) > 0
    rebuilt(index)
    with contextlib.closing(Database(index.directory / "rebuilt.duckdb", LOG_ID)) as database:
        assert database.orphaned_contents() == [b"a".hex() * 32]


@proves("deferred-rows-keep-contents", "a content whose row is set aside is not removed", condition=True)
def test_contents_stay_while_blocks_are_set_aside_that_may_name_them(index: Index) -> None:
    index.take((Kind.STORED, pack([b"S" * 16, b"a" * 32, 5])))
    assert index.database.orphaned_contents() == [b"a".hex() * 32]
    for table, row in (
        ("refused", "(1, 'S', '[]', 2, now()::TIMESTAMP)"),
        ("quarantine", "(1, 1, 'x', '', 'x', 9, true)"),
    ):
        RunBuilder(index.database.connection).select(table, f"VALUES {row}")
        assert index.database.orphaned_contents() == []
        index.database.connection.execute(f"DELETE FROM base.{table}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    store = FileStore(tmp_path / "files", 1 << 30)
    yield store
    store.close()


def at_line(function: Callable[..., Any], number: int, act: Callable[[], Any], run: Callable[[], Any]) -> bool:
    """Run something, and act before the line with this number that a function executes. False: it has fewer lines."""
    count, has_acted = 0, False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count, has_acted
        if frame.f_code is not function.__code__:
            return trace if event == "call" else None
        if event == "line" and not has_acted:
            count += 1
            if count == number:
                has_acted = True
                sys.settrace(None)
                act()
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return has_acted


@proves(
    "claimed-content-put-back",
    "a content that counts as stored is not removed at the same moment",
    new="aside.unlink()",
)
def test_a_content_that_is_saved_while_the_cleaner_removes_it_is_not_lost(store: FileStore, tmp_path: Path) -> None:
    """Each saves between any two lines of the other: a content that counts as stored is there."""
    data = b"12345"
    digest = hashlib.sha256(data).digest()
    path = content_path(tmp_path / "files", digest)
    answers: list[object] = []

    def old_content() -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(data)
        os.utime(path, (0, time.time() - CONTENT_AGE_S - 60))
        answers.clear()

    def save() -> None:
        try:
            answers.append(store._open(1, digest, len(data)))
        except FileNotFoundError:
            answers.append(None)  # refused: the agent offers it again

    def remove() -> None:
        remove_contents(tmp_path / "files", [digest.hex()], time.time())

    n_stored = 0
    for traced, run, act in ((remove_contents, remove, save), (FileStore._open, save, remove)):
        for number in itertools.count(1):
            old_content()
            if not at_line(traced, number, act, run):
                break
            if isinstance(answers[0], ContentStored):
                n_stored += 1
                assert path.read_bytes() == data, (traced.__name__, number)
            for token in list(store._parts):
                store._let_go(token)
            assert not list(path.parent.glob("*.removed"))
        assert number > 5
    assert n_stored > 5


@proves("set-aside-content-restored", "a content that a killed process had set aside is not lost")
@pytest.mark.parametrize("has_links", [True, False])
def test_a_content_that_a_killed_cleaner_had_set_aside_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(*paths: Path) -> None:
        raise PermissionError(errno.EPERM, "no links")  # as of vfat, and of some file systems in user space

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    digest = b"\1" * 32
    path = content_path(tmp_path, digest)
    path.parent.mkdir()
    path.with_name(f".{path.name}.removed").write_bytes(b"12345")
    restore_set_aside(tmp_path)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@proves(
    "young-content-stays",
    "a content that has just come is not removed",
    new="n_bytes += path.stat().st_size\npath.unlink()",
)
def test_only_old_contents_that_no_row_names_are_removed(tmp_path: Path) -> None:
    digests = {name: bytes([number]) * 32 for number, name in enumerate(("other", "old", "young", "part"))}
    for name, digest in digests.items():
        path = content_path(tmp_path, digest) if name != "part" else tmp_path / f"{digest.hex()}.part"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12345")
        if name != "young":
            os.utime(path, (0, time.time() - CONTENT_AGE_S - 60))
    orphans = [digests[name].hex() for name in ("old", "young", "part")] + ["../../etc/passwd", "f" * 64]
    assert remove_contents(tmp_path, orphans, time.time()) == 5
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted([digests["other"].hex(), digests["young"].hex(), f"{digests['part'].hex()}.part"])


def test_records_keep_their_numbers(index: Index) -> None:
    rank = logged(0, 300)
    take_each(index, whole(rank), deletion(rank), *(whole(logged(n, 60, run_id="s")) for n in range(10, 14)))
    numbers = [item.number for _, path in list_segments(index.directory / "log") for item in read_segment(path)]
    assert clean(index, removal_of(index)) > 0
    items = [item for _, path in list_segments(index.directory / "log") for item in read_segment(path)]
    assert all(isinstance(item, Record) for item in items)
    assert [item.number for item in items] == numbers


def trimmed_by(index: Index, published: int) -> Removal:
    return Removal(frozenset(), -1, published=published, refused=frozenset(index.database.refused_records()))


@proves("trimmed-seqs-stay-received", "events whose facts a store has still count as received", new='return b""')
def test_a_rebuild_from_a_trimmed_log_knows_each_seq(index: Index) -> None:
    index.log._segment_bytes = 4096
    history(index)
    (_, until) = index.sql(DAYS)[2]
    seqs = {number: list(have) for number, have in index.follower.state.have.items()}
    small = [f"SELECT count(*) FROM base.{name}" for name in ("producers", "runs", "events", "config", "quarantine")]
    expected = [index.sql(query) for query in small]
    assert clean(index, trimmed_by(index, until)) > 0
    with contextlib.closing(empty_database(index.directory / "rebuilt.duckdb")) as database:
        follower = LogFollower(database, index.directory / "log")
        while database.next_number < index.log.next_number:
            follower.step(index.log.next_number)
        assert {number: list(have) for number, have in follower.state.have.items()} == seqs
        assert (database.dropped, database.lacks_series) == (until, True)
        assert [database.connection.execute(query).fetchall() for query in small] == expected
        follower.close()
    assert clean(index, trimmed_by(index, until)) == 0, "once is enough"


def test_deletions_from_a_trimmed_log_leave_the_seqs_of_others(index: Index) -> None:
    index.log._segment_bytes = 4096
    history(index)
    (_, until) = index.sql(DAYS)[2]
    gone, kept = index.follower.state.producers_by_number[1], index.follower.state.producers_by_number[2]
    seqs = list(index.follower.state.have[kept.producer])
    take_on(index, 4, change(Action.DELETE, 1, producers=[gone.uuid], runs=[]), *everything()[-3:-1])
    assert clean(index, trimmed_by(index, until)) > 0
    assert clean(index, removal_of(index)) > 0
    with contextlib.closing(empty_database(index.directory / "rebuilt.duckdb")) as database:
        follower = LogFollower(database, index.directory / "log")
        while database.next_number < index.log.next_number:
            follower.step(index.log.next_number)
        assert gone.uuid not in follower.state.producers
        assert list(follower.state.have[follower.state.producers[kept.uuid].producer]) == seqs
        invalid = "SELECT count(*) FROM base.quarantine WHERE code = 'invalid_block'"
        assert database.connection.execute(invalid).fetchall() == index.sql(invalid)
        follower.close()


@proves("refused-facts-stay-in-log", "the log keeps the facts of records that were refused at first", new="if True:")
def test_only_published_facts_of_records_that_were_not_refused_leave_the_log(index: Index) -> None:
    index.log._segment_bytes = 4096
    history(index)
    numbers = [item.number for _, path in list_segments(index.directory / "log") for item in read_segment(path)]
    blocks = {number for number in numbers if number % 2 == 0}
    removal = Removal(frozenset(), -1, published=100, refused=frozenset({2, 4}))
    assert clean(index, removal) > 0
    items = [item for _, path in list_segments(index.directory / "log") for item in read_segment(path)]
    trimmed = {item.number for item in items if item.kind == Kind.TRIMMED}
    assert trimmed
    assert trimmed <= {number for number in blocks if number <= 100} - {2, 4}


def test_published_facts_leave_the_log_once_and_newer_ones_later(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cleaner, "PAUSE_S", 0.0)
    index.log._segment_bytes = 4096
    history(index)
    cleaner = LogCleaner(index.directory / "log", tmp_path / "files", may_trim=True)
    cleaner._sweep_at = time.monotonic() + 1000

    def turn(published: int) -> int:
        cleaner._thread = None
        cleaner.turn(index.follower.state, list, time.monotonic(), published)
        if cleaner._thread is not None:
            cleaner._thread.join()
        return sum(
            item.kind == Kind.TRIMMED
            for _, path in list_segments(index.directory / "log")
            for item in read_segment(path)
        )

    first = turn(50)
    assert first > 0
    turn(50)
    assert cleaner._thread is None
    assert turn(100) > first
    cleaner.close()
