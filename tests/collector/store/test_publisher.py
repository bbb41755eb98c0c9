"""The publisher: all tables of a piece, in order, once, whatever ends it in between."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog_collector.backup import back_up, restore
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.maintenance import rebuild
from chiplog_collector.store import piece_cutter
from chiplog_collector.store.compaction import compact, delete_rows, load_deletions, read_deletions
from chiplog_collector.store.delta_store import (
    RETIRED_FROM,
    Addition,
    DeltaStore,
    ForeignPositionError,
    StoreError,
)
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.piece_cutter import PieceCutter
from chiplog_collector.store.published_tables import COMPLETE, ORDERS, PUBLISHED, UNOWNED, live_rows
from chiplog_collector.store.publisher import Publisher, RetiredLogError
from chiplog_schemas.codec import pack
from chiplog_schemas.model.change_record import Action
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.storage.content_files import content_path
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.segment_log import SegmentLog
from chiplog_schemas.storage.watermark import Watermark
from tests.support.changes import change, logged
from tests.support.collector_log import LOG_ID, Rank, receipt, whole
from tests.support.index import Index, empty_database
from tests.support.lake import stored_rows
from tests.support.restored_log import Restored
from tests.support.safeguard import proves
from tests.support.sample_log import everything
from tests.support.store_files import DAY, parquet
from tests.support.store_reader import Reader
from tests.support.waiting import WAIT_S

NAMES = [table.name for table in PUBLISHED] + [COMPLETE]


class KilledError(BaseException):
    """The process ends here."""


class Collector:
    """An index, its outbox and its publisher in one process."""

    def __init__(self, directory: Path, lake: Path) -> None:
        self.url = f"file://{lake}"
        self.index = Index(directory)
        self.outbox = Outbox(directory / "store")
        self.directory = directory
        self.restart()

    def restart(self) -> None:
        log = LOG_ID.hex()
        self.publisher = Publisher(DeltaStore(self.url, log), self.outbox, log, self.directory / "files")

    def cut(self) -> None:
        cutter = PieceCutter(self.index.database.connection, LOG_ID, self.outbox, self.url)
        cutter.start()
        cutter.close()

    def publish(self) -> None:
        self.publisher.begin()
        self.cut()
        while self.publisher.publish_next():
            pass


@pytest.fixture
def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(piece_cutter, "PIECE_ROWS", 500)
    collector = Collector(tmp_path / "one", tmp_path / "lake")
    yield collector
    collector.index.close()


def stored(lake: Path, table: str, columns: str = "COLUMNS(lambda c: c NOT IN ('number', 'place'))") -> list[str]:
    """Return the rows of a table of a store, sorted; of any piece."""
    return sorted(map(repr, stored_rows(lake, table, columns)))


def contents(lake: Path) -> dict[str, list[str]]:
    """Return the rows that do not depend on where pieces end."""
    skipped = {"runs", "producers", "losses", "metric_series", "phase_series", "intervals", COMPLETE}
    return {name: stored(lake, name) for name in NAMES if name not in skipped}


def test_what_is_published_is_what_the_index_holds(collector: Collector, tmp_path: Path) -> None:
    collector.index.take(*everything()[:-1])
    collector.publish()
    assert collector.outbox.ends() == []
    for table in ("metrics", "phases", "system", "console", "events", "media"):
        source = next(t.sources for t in PUBLISHED if t.name == table)
        n = sum(collector.index.sql(f"SELECT count(*) FROM base.{each}")[0][0] for each in source)
        assert len(stored(tmp_path / "lake", table)) == n, table


@proves("published-noted-before-removal", "a piece leaves the outbox after the note that it is published")
@pytest.mark.promise(11)
def test_a_publisher_killed_at_any_call_publishes_each_row_once(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Collector(tmp_path / "two", tmp_path / "other lake")
    payloads = everything()[:-1]
    undisturbed.index.take(*payloads)
    undisturbed.publish()
    expected = contents(tmp_path / "other lake")
    undisturbed.index.close()

    for payload in payloads:  # a flush each
        collector.index.take(payload)
    collector.publisher.begin()
    collector.cut()
    # Killed before and after each; a piece is published by the attempt that removes it.
    points = [(DeltaStore, "_upload"), (DeltaStore, "_sync"), (Publisher, "_note"), (Outbox, "remove")]
    n_killed, killed_at = 0, set()
    while collector.outbox.ends():
        kind, name = points[n_killed % len(points)]
        called, is_after = getattr(kind, name), n_killed // len(points) % 2

        def killed(*arguments: Any, of: tuple[str, Callable[..., Any], int] = (name, called, is_after)) -> None:
            name, called, is_after = of
            if is_after:
                called(*arguments)
            killed_at.add(name)
            raise KilledError

        collector.restart()
        collector.publisher.begin()
        with monkeypatch.context() as patched:
            patched.setattr(kind, name, killed)
            with contextlib.suppress(KilledError):  # not all calls happen: a table may have the piece
                collector.publisher.publish_next()
        n_killed += 1
        collector.restart()
        collector.publisher.begin()
    assert killed_at == {name for _, name in points}
    collector.publish()
    assert contents(tmp_path / "lake") == expected


def log_of(directory: Path) -> Paths:
    """Return the directory of a collector whose log has an ID and nothing more."""
    place = paths_for_root(directory)
    ensure_private_dir(place.collector)
    log = SegmentLog(place.collector / "log", LOG_ID)
    log.append(Kind.RECEIPT, receipt(0))
    log.commit()
    log.close()
    return place


END_S = 60  # for a process to end: Delta waits for an answer for 30 s, ten times
PATIENT = """
import sys
from chiplog_collector.store import publisher
publisher._STALLED_S = publisher._DRAIN_S = 1e9
sys.exit(publisher.main(sys.argv[1:]))
"""


@proves("end-waits-for-no-store", "a publisher whose store is away ends at once")
def test_a_publisher_whose_store_is_away_ends_without_another_try(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-c", PATIENT, str(log_of(tmp_path / "chiplog").root), f"file://{tmp_path}/file/lake"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            assert "cannot be used" in process.stderr.readline()
            process.stdin.close()
            assert process.wait(END_S) == 0
        finally:
            process.kill()


@proves("silent-store-delays-no-end", "a publisher ends soon while its store does not answer", new="return")
def test_a_publisher_whose_store_does_not_answer_ends_soon(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(WAIT_S)
        variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        place = log_of(tmp_path / "chiplog")
        command = [sys.executable, "-m", "chiplog_collector.store", str(place.root), "s3://bucket/lake"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **variables}) as process:
            try:
                with server.accept()[0]:  # a request, which gets no answer
                    assert process.stdin is not None
                    process.stdin.close()
                    assert process.wait(END_S) == 0
            finally:
                process.kill()


@proves("waiting-pieces-read-before-published", "a piece that is published while the next one is cut is not cut again")
def test_a_piece_published_while_the_next_is_cut_is_not_cut_again(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.index.take(*everything()[:3])
    collector.publisher.begin()
    collector.cut()
    collector.index.take(*everything()[3:6])
    published = Outbox.published

    def published_meanwhile(outbox: Outbox) -> object:
        monkeypatch.setattr(Outbox, "published", published)
        while collector.publisher.publish_next():
            pass
        return published(outbox)

    ends = Outbox.ends

    def ends_first(outbox: Outbox) -> list[int]:
        found = ends(outbox)
        monkeypatch.setattr(Outbox, "ends", ends)
        monkeypatch.setattr(Outbox, "published", published_meanwhile)
        return found

    monkeypatch.setattr(Outbox, "ends", ends_first)
    collector.cut()
    while collector.publisher.publish_next():
        pass
    keys = stored(tmp_path / "lake", "metrics", "producer, seq, key")
    assert len(keys) == len(set(keys))


def test_a_store_that_lost_what_was_published_gets_nothing_until_it_is_back(
    collector: Collector, tmp_path: Path
) -> None:
    collector.index.take(*everything()[:3])
    collector.publish()
    before = contents(tmp_path / "lake")
    (tmp_path / "lake").rename(tmp_path / "away")
    (tmp_path / "lake").mkdir()
    collector.restart()
    with pytest.raises(StoreError, match="is it mounted"):
        collector.publisher.begin()
    assert list((tmp_path / "lake").iterdir()) == []
    collector.outbox.notes.unlink()  # as the message says
    collector.restart()
    collector.publish()
    assert contents(tmp_path / "lake") == before


def test_a_piece_that_does_not_follow_what_is_published_is_cut_again(collector: Collector, tmp_path: Path) -> None:
    for payload in everything()[:-1]:
        collector.index.take(payload)
    collector.publisher.begin()
    collector.cut()
    first, *others, last = collector.outbox.ends()
    assert others
    for until in others:
        shutil.rmtree(collector.outbox.file(collector.outbox.piece(until), "").parent)
    manifest = collector.outbox.file(collector.outbox.piece(last), "").parent / "piece.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"after": first - 1}))  # cut before a rebuild
    collector.publish()
    collector.publish()
    keys = stored(tmp_path / "lake", "metrics", "producer, seq, key")
    sources = next(t.sources for t in PUBLISHED if t.name == "metrics")
    n = sum(collector.index.sql(f"SELECT count(*) FROM base.{each}")[0][0] for each in sources)
    assert len(keys) == len(set(keys)) == n


@proves("foreign-position-refused-at-start", "a directory that was copied or restored publishes nothing")
@proves("flush-ends-where-store-ends", "after a rebuild, flushes end where the store does: nothing is published twice")
def test_a_directory_without_its_notes_publishes_again_after_a_rebuild(collector: Collector, tmp_path: Path) -> None:
    payloads = everything()[:-1]
    for payload in payloads[:8]:
        collector.index.take(payload)
    collector.publish()
    before = contents(tmp_path / "lake")
    for path in collector.outbox.directory.glob("*.json"):
        path.unlink()  # as in a directory that was restored from a backup
    collector.restart()
    for _ in range(2):  # the receiver starts it again and again
        with pytest.raises(ForeignPositionError, match="run chiplog rebuild"):
            collector.publisher.begin()
    collector.cut()
    assert collector.outbox.ends() == []

    published = collector.outbox.published()
    assert published is not None
    index = collector.index
    index.take(*payloads[8:])
    index.follower.close()
    index.database.close()
    index.path.unlink()
    index.database = empty_database(index.path)
    index.follower = LogFollower(index.database, index.directory / "log", set(published.positions.values()))
    index.follow()
    collector.outbox.set_published(type(published)(LOG_ID.hex(), collector.url, published.until, published.positions))
    collector.publish()
    found = contents(tmp_path / "lake")
    for table in ("metrics", "phases", "console", "texts"):
        assert set(before[table]) <= set(found[table])
        assert len(found[table]) == len(set(found[table])) or table == "console"
        source = next(t.sources for t in PUBLISHED if t.name == table)
        assert len(found[table]) == sum(index.sql(f"SELECT count(*) FROM base.{each}")[0][0] for each in source)


@proves("overtaken-log-stays-unpublished", "a log that another one overtook notes where", new="pass")
@proves("equal-end-is-no-piece", "a copy whose piece ends where the original's does takes it for none of its own")
@pytest.mark.parametrize("asks_first", [True, False])
def test_a_copy_whose_piece_ends_at_the_same_record_is_refused(
    collector: Collector, tmp_path: Path, asks_first: bool
) -> None:
    """Both have cut a piece that ends at the same record of their logs; one of them was published."""
    collector.index.take(*everything()[:3])
    collector.publisher.begin()
    collector.cut()
    copy = Collector(tmp_path / "copy", tmp_path / "lake")
    copy.index.take(*everything(seed=2)[:3])
    copy.publisher.begin()
    copy.cut()
    assert copy.outbox.ends() == collector.outbox.ends()
    while collector.publisher.publish_next():
        pass
    before = contents(tmp_path / "lake")
    if asks_first:
        copy.restart()
    with pytest.raises(ForeignPositionError):
        if asks_first:
            copy.publisher.begin()
        copy.publisher.publish_next()
    assert copy.outbox.ends()
    assert contents(tmp_path / "lake") == before
    assert asks_first or copy.outbox.unconfirmed() == 0, "what follows the last own piece is not in the store"
    copy.index.close()


def test_a_log_that_was_retired_while_it_slept_says_so_and_not_that_another_one_uses_its_id(
    collector: Collector, tmp_path: Path
) -> None:
    """Others deleted in its place. It wakes before its next look whether it is retired, and has deleted something."""
    gone, log = logged(0), LOG_ID.hex()
    collector.index.take(whole(gone), whole(logged(1, run_id="other")))
    collector.publish()
    other = DeltaStore(collector.url, log)
    other.retire(log)
    query = f"""SELECT '{log}' AS log, {RETIRED_FROM} AS number, NULL::VARCHAR AS producer, 'x' AS run_id,
        NULL::TIMESTAMPTZ AS samples_until, now() AS ts, false AS is_request"""
    other.publish(Addition("deletions", parquet(tmp_path / "x.parquet", query), DAY, -1, RETIRED_FROM, "ab"))
    collector.index.take(change(Action.DELETE, producers=[gone.uuid], runs=["r"]))
    collector.cut()
    with pytest.raises(RetiredLogError) as raised:
        collector.publisher.publish_next()
    assert raised.value.published.log == log
    collector.restart()
    with pytest.raises(RetiredLogError):
        collector.publisher.begin()


# -- deletions and rewritten files --


def live(collector: Collector, table: str) -> int:
    """Return how many rows of a table of the store are not deleted."""
    store, scratch = DeltaStore(collector.url, LOG_ID.hex()), collector.directory / "scratch"
    paths = [store.address_of(table, file) for file in store.snapshot(table)]
    if not paths:
        return 0
    with duckdb.connect() as engine:
        load_deletions(engine, read_deletions(store, scratch))
        query = f"SELECT count(*) FROM read_parquet(?, union_by_name = true) f WHERE {live_rows(table)}"
        return engine.execute(query, [paths]).fetchall()[0][0]


def expect_rows_of_index(collector: Collector) -> None:
    """Check that the live rows of the store are those of the index."""
    for table in PUBLISHED:
        if table.name in UNOWNED or table.is_dimension or table.is_series or table.name == "intervals":
            continue
        n = sum(collector.index.sql(f"SELECT count(*) FROM base.{source}")[0][0] for source in table.sources)
        assert live(collector, table.name) == n, table.name


def test_readers_hide_what_was_deleted_at_once_and_maintenance_removes_it(collector: Collector, tmp_path: Path) -> None:
    """Deleted, restored and recorded again: the store has the rows that the index has."""
    other, late = logged(50, run_id="other", primary=True), logged(51, run_id="late", primary=True)
    index = collector.index
    index.take(*everything())
    index.take(whole(other), whole(late))
    collector.publish()
    expect_rows_of_index(collector)
    state = index.follower.state
    gone = [uuid for uuid in state.producers if uuid not in (other.uuid, late.uuid)]
    n_before = live(collector, "metrics")
    index.take(change(Action.DELETE, producers=[*gone, late.uuid], runs=["r", "late"], why="rm"))
    collector.publish()
    expect_rows_of_index(collector)
    assert 0 < live(collector, "metrics") < n_before
    runs = [run for (run,) in stored_rows(tmp_path / "lake", "deletions", "DISTINCT run_id") if run]
    assert set(runs) >= {"r", "late"}
    index.take(change(Action.RESTORE, producers=[late.uuid], runs=["late"]), whole(late))
    collector.publish()
    expect_rows_of_index(collector)
    assert live(collector, "runs") >= 2
    store, scratch = DeltaStore(collector.url, "ef" * 16), tmp_path / "scratch"
    deletions = read_deletions(store, scratch)
    for table, order in ORDERS.items():
        while delete_rows(store, table, order, deletions, scratch) is not None:
            pass
    expect_rows_of_index(collector)
    keys = stored_rows(tmp_path / "lake", "metrics", "producer, seq, key")
    assert {producer for producer, *_ in keys} == {other.uuid.hex(), late.uuid.hex()}
    assert len(keys) == len(set(keys)) == live(collector, "metrics")


@proves("run-with-others-stays", "the row of a run that lost some of its labels is published again")
def test_a_run_of_which_one_label_was_deleted_stays_in_the_store(collector: Collector) -> None:
    gone, left = logged(0), logged(1)
    collector.index.take(whole(gone), whole(left))
    collector.publish()
    collector.index.take(change(Action.DELETE, producers=[gone.uuid], runs=["r"]))
    collector.publish()
    assert live(collector, "runs") == 1


@proves(
    "compacted-piece-known",
    "a piece whose files were merged before its publisher noted it is the collector's own",
    part="_piece_number(piece)",
    new="-1",
)
def test_a_piece_that_was_merged_before_it_was_noted_is_its_own(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for payload in everything()[:-1]:
        collector.index.take(payload)
    collector.publisher.begin()
    collector.cut()
    assert len(collector.outbox.ends()) > 1

    def killed(*_: object) -> None:
        raise KilledError

    while collector.outbox.ends():
        collector.publisher.begin()
        with monkeypatch.context() as patched:
            patched.setattr(Publisher, "_note", killed)
            with contextlib.suppress(KilledError):
                collector.publisher.publish_next()
        store = DeltaStore(collector.url, "ef" * 16)  # another collector's maintenance
        for table, order in ORDERS.items():
            compact(store, table, order, tmp_path / "scratch", pieces_min=0)
        collector.restart()
        collector.publisher.begin()
        collector.publisher.publish_next()
    expect_rows_of_index(collector)


@proves("long-upload-is-not-silence", "a collector writes heartbeats also while one content takes long to store")
def test_heartbeats_go_on_while_one_content_is_stored(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chiplog_collector.store.publisher._POLL_S", 0.01)
    beaten, done = threading.Event(), []

    def slow(*_: object) -> bool:
        done.append(f"stored after a heartbeat: {beaten.wait(WAIT_S)}")
        return False

    monkeypatch.setattr(DeltaStore, "put_content", slow)
    collector.index.take((Kind.STORED, pack([b"S" * 16, bytes(32), 1])))
    collector.publisher.begin()
    collector.cut()
    while collector.publisher.publish_next(beaten.set):
        pass
    assert done == ["stored after a heartbeat: True"]


@proves(
    "renewed-content-put-again", "a content that a vacuum removes while rows that name it are published is put again"
)
def test_a_content_that_goes_while_its_rows_are_published_is_put_again(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, old = bytes(32), time.time() - 8 * 24 * 3600
    content, stored_content = (
        content_path(tmp_path / "one" / "files", digest),
        tmp_path / "lake" / "contents" / digest.hex(),
    )
    for path in (content, stored_content):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    os.utime(stored_content, (old, old))
    collector.index.take((Kind.STORED, pack([b"S" * 16, digest, 1])))
    publish = Publisher._publish

    def vacuumed(publisher: Publisher, piece: object, table: str) -> None:
        stored_content.unlink(missing_ok=True)
        publish(publisher, piece, table)

    monkeypatch.setattr(Publisher, "_publish", vacuumed)
    collector.publish()
    assert stored_content.read_bytes() == b"x"


def test_refused_rows_that_a_changed_key_admits_are_published_once_also_after_a_rebuild(
    collector: Collector, tmp_path: Path
) -> None:
    """They count to the record that admitted them, in a rebuild too: its flushes are numbered as before."""
    index, refused = collector.index, logged(0, run_id="refused", node="node-a")

    def take(nodes: list[str], rank: Rank) -> None:
        index.log.append(Kind.BLOCK, whole(rank))
        index.log.append(Kind.RECEIPT, receipt(index.log.next_number, b"sender".ljust(16, b"-"), nodes))
        index.log.commit()
        index.follow()

    take(["node-b"], refused)
    take(["node-b"], logged(1, run_id="own", node="node-b"))
    collector.publish()
    assert {run for (run,) in stored_rows(tmp_path / "lake", "metrics", "run_id")} == {"own"}
    take(["node-a", "node-b"], logged(2, run_id="later", node="node-b"))
    for is_rebuilt in (False, True):
        if is_rebuilt:
            published = collector.outbox.published()
            assert published is not None
            index.follower.close()
            index.database.close()
            index.path.unlink()
            index.database = empty_database(index.path)
            index.follower = LogFollower(index.database, index.directory / "log", set(published.positions.values()))
            index.follow()
            collector.restart()
        collector.publish()
        runs = [run for (run,) in stored_rows(tmp_path / "lake", "metrics", "run_id")]
        assert {run: runs.count(run) for run in runs} == {"own": 3, "refused": 3, "later": 3}
        expect_rows_of_index(collector)


def backed_up(index: Index, place: Paths, target: Path) -> None:
    watermark = Watermark(place.collector / "synced", writable=True)
    watermark.set(index.log.next_number)
    watermark.close()
    back_up(place, target, lambda done, total: None)


@proves(
    "restored-log-has-new-id",
    "new records of a restored log do not pass for published ones",
    part="larger_owner(owner)",
    new="owner",
)
@pytest.mark.parametrize("is_older", [True, False])
def test_a_restored_log_publishes_what_is_new_and_nothing_twice(tmp_path: Path, is_older: bool) -> None:
    """The backup ends before the store's position, or after it."""
    payloads, lake = [whole(logged(number, 20)) for number in range(18)], tmp_path / "lake"
    place = paths_for_root(tmp_path / "one")
    place.collector.mkdir(parents=True)
    original = Collector(place.collector, lake)
    original.index.take(*payloads[:6])
    if not is_older:
        original.publish()
        original.index.take(*payloads[6:9])
    backed_up(original.index, place, tmp_path / "backup")
    if is_older:
        original.index.take(*payloads[6:9])
        original.publish()
    original.index.close()
    target = paths_for_root(tmp_path / "two")
    restore(tmp_path / "backup", target)
    restored = Restored(target, original.url)
    assert restored.log_id > LOG_ID
    restored.take(payloads[9:14])
    if not is_older:
        with pytest.raises(ForeignPositionError, match="run chiplog rebuild"):
            restored.publish()
        restored.close()
        assert "other records" not in rebuild(target)
        restored = Restored(target, original.url)
    restored.take(payloads[14:])
    assert restored.publish() > 0
    restored.close()
    target.index.unlink()
    restored = Restored(target, original.url)
    assert restored.publish() == 0, "a rebuild publishes nothing again"
    found = stored(lake, "metrics", "producer, seq, key")
    assert len(found) == len(set(found)) == 20 * len(payloads)
    reader = Reader(restored.url, tmp_path, restored.follower.database.connection, restored.log_id.hex())
    assert reader.sql("SELECT count(*), count(DISTINCT (label, step)) FROM metrics") == [(20 * len(payloads),) * 2]
    assert reader.sql("SELECT sum(stored) FROM completeness") == [(21 * len(payloads),)]
    assert reader.sql("SELECT sum(n)::BIGINT FROM merged.metric_series") == [(20 * len(payloads),)]
    reader.close()
    restored.close()
