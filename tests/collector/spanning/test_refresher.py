"""The thread that looks at a store: a store that is away changes nothing, and is one line."""

import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_collector.query.sql_guard import QueryRejected
from chiplog_collector.spanning.refresher import StoreReader
from chiplog_collector.store.delta_store import Addition, DeltaStore, StoreError
from chiplog_collector.store.heartbeat import Beats
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.published_tables import ORDERS
from tests.support.index import Index
from tests.support.published_index import everything_published, publish_in_pieces
from tests.support.safeguard import proves
from tests.support.sample_log import everything
from tests.support.store_files import DAY, LOG, parquet
from tests.support.store_reader import Reader
from tests.support.waiting import WAIT_S


@proves(
    "unreadable-store-stops-nothing", "a store that is away costs one line, and the rows known of it stay", value="()"
)
def test_a_store_that_is_away_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, store = everything_published(tmp_path)
    reader = Reader(store.url, tmp_path)
    expected = len(reader.sql("FROM runs"))
    caplog.set_level(logging.INFO, "chiplog.index")
    log = tmp_path / "lake" / "collectors" / "_delta_log"
    shutil.move(log, tmp_path / "away")
    log.write_text("no directory")
    for _ in range(3):
        reader.store._look_at = 0.0
        reader.store.turn()
    assert len(reader.sql("FROM runs")) == expected
    [line] = caplog.messages
    assert line.startswith(f"the store file://{tmp_path}/lake cannot be read: ")
    log.unlink()
    shutil.move(tmp_path / "away", log)
    reader.store._look_at = 0.0
    reader.store.turn()
    assert caplog.messages[1:] == [f"the store file://{tmp_path}/lake can be read again"]
    reader.close()
    index.close()


def test_a_reader_alone_notes_for_clients_that_it_cannot_read_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(f"file://{tmp_path}/lake", tmp_path)
    refused, refresh = tmp_path / "reader" / "refused", reader.store.refresh

    def fail() -> bool:
        raise StoreError("no credentials")

    monkeypatch.setattr(reader.store, "refresh", fail)
    reader.store.turn()
    assert refused.read_text() == str(os.getpid())
    monkeypatch.setattr(reader.store, "refresh", refresh)
    reader.store.turn()
    assert not refused.exists()
    refused.mkdir()  # it can be neither written nor removed
    caplog.clear()
    reader.store.turn()
    assert not caplog.messages
    monkeypatch.setattr(reader.store, "refresh", fail)
    reader.store.turn()
    monkeypatch.setattr(reader.store, "refresh", refresh)
    reader.store.turn()
    assert not reader.store.cold.trouble, "the disk of the cache is not the store"
    reader.close()


@pytest.mark.parametrize("noted", ["_note_heard", "_leave_out_doubled"])
def test_a_reader_alone_answers_only_after_its_whole_first_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: str
) -> None:
    index, store = everything_published(tmp_path)
    was_seen: list[bool] = []
    note = getattr(StoreReader, noted)

    def look(reader: StoreReader, *arguments: object) -> None:
        was_seen.append(reader.cold.seen.is_set())
        note(reader, *arguments)

    monkeypatch.setattr(StoreReader, noted, look)
    reader = Reader(store.url, tmp_path)
    assert was_seen == [False]
    assert reader.store.cold.seen.is_set()
    reader.close()
    index.close()


def test_the_thread_takes_what_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chiplog_collector.spanning.refresher.REFRESH_S", 0.05)
    reader = Reader(f"file://{tmp_path}/lake", tmp_path)
    reader.store.start()
    assert reader.sql("FROM runs") == []
    index = Index(tmp_path)
    publish_in_pieces(index, tmp_path / "lake", everything()[:-1])
    deadline = time.monotonic() + WAIT_S
    while not reader.sql("FROM runs") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(reader.sql("FROM runs")) == len(index.sql("FROM runs"))
    reader.close()
    index.close()


@proves(
    "silent-store-delays-no-index",
    "an index ends at once while its store does not answer",
    new="self._thread.join()",
)
@pytest.mark.parametrize("is_silent", [True, False], ids=["store", "statement"])
def test_a_look_that_takes_long_delays_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_silent: bool
) -> None:
    reader = Reader(f"file://{tmp_path}/lake", tmp_path)
    begun, answers = threading.Event(), threading.Event()

    def take_long() -> None:
        begun.set()
        if is_silent:
            answers.wait()
            reader.store._cursor.execute("SELECT 1")
        else:
            reader.store._cursor.execute("SELECT sum(a.range * b.range) FROM range(10_000_000) a, range(10_000_000) b")

    monkeypatch.setattr(reader.store, "refresh", take_long)
    reader.store.start()
    assert begun.wait(WAIT_S)
    closing = threading.Thread(target=reader.close, daemon=True)
    closing.start()
    closing.join(WAIT_S / 6)
    assert not closing.is_alive()
    answers.set()
    reader.store._thread.join(WAIT_S)
    assert not reader.store._thread.is_alive(), "it finds its cursor closed, and ends"
    assert not caplog.messages, "an end is no fault of the store"


@proves("damaged-cache-made-again", "a damaged cache of a store is made again", value="()")
def test_a_damaged_cache_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index, store = everything_published(tmp_path)
    cache = tmp_path / "reader" / "cache.duckdb"
    cache.parent.mkdir()
    cache.write_bytes(b"no database" * 1000)
    reader = Reader(store.url, tmp_path)
    assert len(reader.sql("FROM runs")) == len(index.sql("FROM runs"))
    assert any("cache.duckdb is made again" in line for line in caplog.messages)
    reader.close()
    index.close()


@proves("damaged-file-hides-no-other", "a file of a store that cannot be read is named, and hides no other", value="()")
@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "missing"])
def test_a_file_that_cannot_be_read_is_named_and_the_rest_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_cut: bool
) -> None:
    index, store = everything_published(tmp_path)
    path, *_ = sorted((tmp_path / "lake" / "events").rglob("*.parquet"))
    data = path.read_bytes()
    path.write_bytes(data[:50]) if is_cut else path.unlink()
    reader = Reader(store.url, tmp_path)
    assert len(reader.sql("FROM runs")) == len(index.sql("FROM runs"))
    assert len(reader.sql("FROM events")) < len(index.sql("FROM events"))
    [line] = [line for line in caplog.messages if "cannot be read, the rest can" in line]
    assert path.name in line
    assert not reader.store.refresh(), "it is looked for again in a minute"
    reader.store._look_at = reader.store._list_at = 0.0
    assert reader.store.refresh()  # it alone
    path.write_bytes(data)
    reader.store._look_at = reader.store._list_at = 0.0
    assert reader.store.refresh()
    assert len(reader.sql("FROM events")) == len(index.sql("FROM events"))
    reader.close()
    index.close()


class Publisher:
    """Publishes rows of chosen tables, and the heartbeat after them."""

    def __init__(self, url: str, directory: Path) -> None:
        self.store = DeltaStore(url, LOG)
        self.beats = Beats(self.store, Outbox(directory / "outbox"), keeps_files=True)
        self._directory = directory
        self._until = -1

    def commit(self, *tables: str) -> None:
        for table in tables:
            columns = {
                "names": f"'key {self._until}' AS name",
                "stored": "'ab' AS sha256",
                "collectors": "'h' AS host, now() AS cut_at",
            }[table]
            query = f"SELECT '{LOG}' AS log, {self._until + 1}::BIGINT AS number, {columns}"
            file = parquet(self._directory / "file.parquet", query)
            self.store.publish(Addition(table, file, DAY, self._until, self._until + 1))

    def publish(self, *tables: str) -> None:
        self.commit(*tables)
        self._until += 1
        self.beats.note_published()
        self.beats.beat(self._until)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Publisher, Reader, list[str]]]:
    """A store that a reader has seen, and the tables that the reader then lists."""
    publisher = Publisher(f"file://{tmp_path}/lake", tmp_path)
    publisher.publish("names", "collectors")
    reader = Reader(publisher.store.url, tmp_path)
    listed: list[str] = []
    snapshot = DeltaStore.snapshot
    monkeypatch.setattr(DeltaStore, "snapshot", lambda store, table: listed.append(table) or snapshot(store, table))
    yield publisher, reader, listed
    reader.close()


def test_a_reader_opens_the_tables_that_have_news(watched: tuple[Publisher, Reader, list[str]]) -> None:
    publisher, reader, listed = watched
    assert not reader.store.refresh()
    publisher.publish("collectors")
    assert reader.store.refresh()
    assert listed == ["collectors"]
    publisher.publish("names", "collectors")
    assert reader.store.refresh()
    assert listed == ["collectors", "collectors", "names"]
    publisher.beats.note_published()
    publisher.beats.beat(2)
    assert not reader.store.refresh(), "a heartbeat alone is no news"
    assert len(listed) == 3


@proves(
    "unreadable-heartbeat-is-news", "a heartbeat that cannot be read, or of an older chiplog, is news of all tables"
)
@pytest.mark.parametrize("content", [{}, {"number": 1}, {"number": 1, "tables": "all"}])
def test_a_heartbeat_without_tables_has_all_of_them_listed(
    watched: tuple[Publisher, Reader, list[str]], content: dict[str, object]
) -> None:
    publisher, reader, listed = watched
    publisher.commit("names")
    publisher.store.put_heartbeat(content)
    assert reader.store.refresh()
    assert listed == list(reversed(ORDERS))


@proves("later-commit-opens-the-rest", "what was committed after its heartbeat has the tables before it listed, too")
def test_a_commit_after_the_heartbeat_has_the_tables_before_it_listed(
    watched: tuple[Publisher, Reader, list[str]],
) -> None:
    publisher, reader, listed = watched
    publisher.publish("stored", "collectors")
    publisher.commit("names", "stored")  # of the next piece
    assert reader.store.refresh()
    assert listed == ["collectors", "stored", "producers", "runs", "deletions", "names"]
    assert reader.sql("SELECT count(*) FROM held.names") == [(2,)]


def test_a_piece_whose_publisher_was_killed_before_its_heartbeat_is_seen(
    watched: tuple[Publisher, Reader, list[str]], tmp_path: Path
) -> None:
    publisher, reader, listed = watched
    publisher.commit("names", "collectors")
    (tmp_path / "other").mkdir()
    other = DeltaStore(publisher.store.url, "ef" * 16)
    row = f"SELECT '{'ef' * 16}' AS log, 5::BIGINT AS number, 'o' AS host, now() AS cut_at"
    other.publish(Addition("collectors", parquet(tmp_path / "other" / "file.parquet", row), DAY, -1, 5))
    other.put_heartbeat({"number": 5, "tables": other.versions})
    assert reader.store.refresh()
    assert listed == list(reversed(ORDERS))
    listed.clear()
    assert not reader.store.refresh()
    assert listed == []


@pytest.mark.parametrize("end", [0, -1])
def test_rows_of_a_restored_log_are_found_under_its_former_id(tmp_path: Path, end: int) -> None:
    """Before its first piece under the new ID. end: how much less of the former log was restored than was dropped."""
    index, store = everything_published(tmp_path)
    dropped = index.database.next_number - 1
    reader = Reader(store.url, tmp_path, log="ff" * 16, former=(index.log_id, dropped + end))
    reader.connection.execute(f"CREATE OR REPLACE TABLE base.dropped AS SELECT {dropped}::BIGINT AS flush")
    if end < 0:
        with pytest.raises(QueryRejected, match="in the store alone"):
            reader.sql("FROM metrics")
    else:
        assert len(reader.sql("FROM metrics")) == len(index.sql("FROM metrics"))
    reader.close()
    index.close()
