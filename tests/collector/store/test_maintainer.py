"""The maintenance of a store: a turn does what is due, and a failure is tried again."""

import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from chiplog_collector.store import compaction, maintainer
from chiplog_collector.store.compaction import read_deletions
from chiplog_collector.store.deletion_requests import DeletionRequest, DeletionRequests
from chiplog_collector.store.delta_store import RETIRED_FROM, Addition, DeltaStore, StoreError
from chiplog_collector.store.maintainer import VACUUM_S, Maintainer, delete_for_gone, remove_contents
from chiplog_schemas.model.change_record import Action
from tests.support.changes import change
from tests.support.collector_log import Rank, whole
from tests.support.index import Index
from tests.support.lake import stored_rows
from tests.support.published_index import publish_in_pieces
from tests.support.safeguard import proves
from tests.support.store_files import DAY, LOG, parquet
from tests.support.store_reader import Reader

QUERY = """SELECT 'log' AS log, 1::BIGINT AS number, 'run' AS run_id, 'key' AS key, 'p' AS producer, i AS step, i AS seq
    FROM range(3) t(i)"""


@pytest.fixture
def store(tmp_path: Path) -> DeltaStore:
    store = DeltaStore(f"file://{tmp_path}/lake", LOG)
    file = parquet(tmp_path / "file.parquet", QUERY)
    for until in range(4):
        store.publish(Addition("metrics", file, DAY, until - 1, until))
    return store


def n_files(directory: Path) -> int:
    return len(DeltaTable(f"{directory}/lake/metrics").file_uris())


def test_a_turn_compacts_after_something_was_published_and_only_then(
    tmp_path: Path, store: DeltaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction.compact, "__kwdefaults__", {"pieces_min": 4})
    found = Maintainer(store, tmp_path / "scratch")
    found.turn(0.0)
    assert n_files(tmp_path) == 4
    found.note_published()
    found.turn(0.0)
    assert n_files(tmp_path) == 1


@proves(
    "failed-maintenance-tried-again",
    "a store that is away while it is maintained is one line, and tried again",
    value="()",
)
def test_a_turn_that_fails_is_one_line_and_tried_again(
    tmp_path: Path, store: DeltaStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(compaction.compact, "__kwdefaults__", {"pieces_min": 4})
    found = Maintainer(store, tmp_path / "scratch")
    found.note_published()

    def refuses(*_: object) -> None:
        raise StoreError("503 Slow Down")

    with monkeypatch.context() as patched:
        patched.setattr(maintainer, "compact", refuses)
        for _ in range(3):
            found.turn(0.0)
    assert caplog.text.count("503 Slow Down") == 1
    found.turn(0.0)
    assert n_files(tmp_path) == 1


def test_old_files_are_removed_once_a_day(tmp_path: Path, store: DeltaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    vacuumed: list[str] = []
    monkeypatch.setattr(DeltaStore, "vacuum", lambda store, table: vacuumed.append(table) or 0)
    found = Maintainer(store, tmp_path / "scratch")
    for now in (0.0, 1e9, 1e9 + 1, 1e9 + 2 * VACUUM_S):
        found.note_published()
        found.turn(now)
    assert vacuumed.count("metrics") == 2


def test_what_another_log_deletes_is_noted_and_removed_without_news_of_the_own_log(
    tmp_path: Path, store: DeltaStore
) -> None:
    requests = DeletionRequests(tmp_path / "own", "aa" * 16)
    found = Maintainer(store, tmp_path / "scratch", requests)
    found.turn(0.0)
    row = "SELECT {log!r} AS log, 9::BIGINT AS number, {producer} AS producer, 'run' AS run_id, {request} AS is_request"
    query = f"""SELECT *, NULL::TIMESTAMPTZ AS samples_until FROM (
        {row.format(log="log", producer="'p'", request=False)} UNION ALL
        {row.format(log="log", producer="NULL", request=True)})"""
    store.publish(Addition("deletions", parquet(tmp_path / "file.parquet", query), DAY, -1, 9))
    before = store.requests.copy()
    found.turn(1.0)
    assert (requests.waiting(), store.requests) == ([], before), "nothing is requested while nothing arrives"
    requests.note_news()
    found.turn(2.0)
    assert requests.waiting() == [DeletionRequest("log", 9, "run")]
    assert n_files(tmp_path) == 0


class Gone:
    """A store with a run of two logs, of which the collector of one is gone."""

    def __init__(self, directory: Path, *, answered: dict[str, int]) -> None:
        self.lake = directory / "lake"
        self.indexes = [Index(directory / name, bytes([first]) * 16) for name, first in (("gone", 7), ("own", 200))]
        ranks = [Rank(number) for number in range(4)]
        for rank in ranks:
            rank.log(0, loss=1.0)
        for rank in ranks[1::2]:
            rank.become(run_id="other")
        for index, mine in zip(self.indexes, (ranks[:2], ranks[2:]), strict=True):
            publish_in_pieces(index, self.lake, [whole(rank) for rank in mine], 1)
        self.gone, self.own = (DeltaStore(f"file://{self.lake}", index.log_id.hex()) for index in self.indexes)
        self.gone.put_heartbeat({"deletions": answered})
        self.scratch = directory / "scratch"
        self._reader: Reader | None = None

    def be_silent(self, days: float) -> None:
        before = time.time() - days * 24 * 3600
        os.utime(self.lake / "heartbeats" / self.indexes[0].log_id.hex(), (before, before))

    def delete(self) -> None:
        """Delete the run at the collector that is left."""
        index = self.indexes[1]
        number = index.log.next_number
        publish_in_pieces(index, self.lake, [change(Action.DELETE, number=9, runs=["r"], producers=[])], 1)
        assert index.log.next_number > number

    def runs(self) -> set[tuple[str, str]]:
        """Return the logs and runs of which a reader sees values."""
        self._reader = self._reader or Reader(self.own.url, self.scratch.parent)
        self._reader.store._look_at = self._reader.store._list_at = 0.0
        self._reader.store.refresh()
        return set(self._reader.sql("SELECT DISTINCT run_id, label FROM metrics"))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        for index in self.indexes:
            index.close()


@proves("gone-log-retired", "a log of which others delete in its place does not continue under its ID")
def test_of_a_log_that_is_gone_others_delete_what_is_wanted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Gone(tmp_path, answered={})
    before, log = found.runs(), found.indexes[0].log_id.hex()
    found.delete()
    turns = Maintainer(found.own, found.scratch)
    for days in (0.1, 6.9):
        found.be_silent(days)
        turns.turn(0.0)
        turns._gone_at = 0.0
        assert found.runs() == before
        assert found.own.retired() == set()
    found.be_silent(7.1)
    turns.turn(0.0)
    assert found.runs() == {row for row in before if row != ("r", "rank0")}
    assert found.own.retired() == {log}
    assert {row for row in stored_rows(found.lake, "metrics", "log, label") if row[0] == log} == {(log, "rank1")}
    rows = stored_rows(found.lake, "deletions", "log, producer, run_id, is_request")
    turns._gone_at = 0.0
    turns.turn(1.0)
    assert stored_rows(found.lake, "deletions", "log, producer, run_id, is_request") == rows, "once"
    assert (log, None, "r", False) in rows
    assert found.gone.position("deletions") == RETIRED_FROM
    assert "deletions" not in found.gone.positions(["deletions"])
    found.close()


def test_a_collector_knows_the_runs_that_others_have(tmp_path: Path) -> None:
    found = Gone(tmp_path, answered={})
    index = found.indexes[1]
    index.take(whole(Rank(9, run_id="of the index")))
    reader = Reader(found.own.url, index.directory, index.database.connection, index.log_id.hex())
    far = reader.store.elsewhere("r")
    assert far is not None
    assert (far.hosts, far.running, far.can_ask) == ((socket.gethostname(),), ("rank0",), True)
    assert reader.store.elsewhere("of the index") is None
    reader.close()
    found.close()


def test_a_log_that_is_gone_is_retired_where_nothing_is_deleted(tmp_path: Path) -> None:
    found = Gone(tmp_path, answered={})
    log, turns = found.indexes[0].log_id.hex(), Maintainer(found.own, found.scratch)
    for days, retired in ((6.9, set()), (7.1, {log})):
        found.be_silent(days)
        turns._gone_at = 0.0
        turns.turn(0.0)
        assert found.own.retired() == retired
    found.close()


def test_a_retired_log_is_gone_at_once(tmp_path: Path) -> None:
    found = Gone(tmp_path, answered={})
    found.delete()
    found.own.retire(found.indexes[0].log_id.hex())
    assert delete_for_gone(found.own, read_deletions(found.own, found.scratch), found.scratch, set()) == 1
    assert ("r", "rank0") not in found.runs()
    found.close()


@proves(
    "unreadable-gone-log-stops-nothing",
    "a file that cannot be read, of a log that is gone, does not end the maintenance of the other logs",
    value="()",
)
def test_a_log_that_is_gone_and_cannot_be_read_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Gone(tmp_path, answered={})
    DeltaStore(found.own.url, "00" * 16).put_heartbeat({"deletions": {"c8" * 16: "x"}})
    found.own.retire("00" * 16)
    found.own.retire(found.indexes[0].log_id.hex())
    found.delete()
    deletions = read_deletions(found.own, found.scratch)
    files = {path: path.read_bytes() for path in (found.lake / "producers").glob("*/*.parquet")}
    for path in files:
        path.write_bytes(b"damaged")
    assert delete_for_gone(found.own, deletions, found.scratch, set()) == 0
    assert "nothing can be deleted" in caplog.text
    for path, content in files.items():
        path.write_bytes(content)
    assert delete_for_gone(found.own, deletions, found.scratch, set()) == 1
    for path in (found.lake / "deletions").glob("*/*.parquet"):
        path.write_bytes(b"damaged")
    Maintainer(found.own, found.scratch).turn(0.0)
    assert "cannot be maintained now" in caplog.text
    found.close()


@proves(
    "answered-request-stays-answered",
    "a deletion from before a run of that name came to a log does not concern that log once it is gone",
    part="each.number > answered.get(each.log, -1)",
    new="True",
)
def test_what_a_log_had_answered_before_it_was_gone_is_not_deleted_again(tmp_path: Path) -> None:
    found = Gone(tmp_path, answered={"c8" * 16: 1000})
    before = found.runs()
    found.delete()
    found.be_silent(9)
    Maintainer(found.own, found.scratch).turn(0.0)
    assert found.runs() == before
    found.close()


@proves("named-content-stays", "a content stays while a row of a snapshot of the last 7 days names it", new="pass")
@proves("renewed-content-stays", "a content that was put again while a vacuum looked stays", condition=False)
def test_contents_that_no_row_names_are_removed_after_a_week(
    tmp_path: Path, store: DeltaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = time.time() - 8 * 24 * 3600
    contents = tmp_path / "lake" / "contents"
    file = tmp_path / "file"
    for name in ("named", "formerly named", "renewed", "gone", "young"):
        file.write_bytes(name.encode())
        assert not store.put_content(name, file)
        if name != "young":
            os.utime(contents / name, (old, old))
    for number, name in enumerate(("formerly named", "named")):
        path = parquet(tmp_path / "files.parquet", f"SELECT 'log' AS log, '{name}' AS sha256")
        store.publish(Addition("files", path, DAY, number - 1, number))
        if not number:
            store.replace("files", store.snapshot("files"), [], is_change=True)
    fetch = DeltaStore.fetch

    def fetched(*given: Any) -> None:
        file.write_bytes(b"renewed")
        store.put_content("renewed", file)
        fetch(*given)

    monkeypatch.setattr(DeltaStore, "fetch", fetched)
    assert remove_contents(store, tmp_path / "scratch") == 1
    assert {path.name for path in contents.iterdir()} == {"named", "formerly named", "renewed", "young"}
    assert (contents / "renewed").read_bytes() == b"renewed"


@proves(
    "old-content-renewed", "a content that is old in the store is young again once a run brings it", condition=False
)
def test_a_content_that_comes_again_is_young(tmp_path: Path, store: DeltaStore) -> None:
    old, file = time.time() - 8 * 24 * 3600, tmp_path / "file"
    file.write_bytes(b"x")
    store.put_content("x", file)
    os.utime(tmp_path / "lake" / "contents" / "x", (old, old))
    assert store.put_content("x", file)
    assert not store.put_content("x", file)
    assert remove_contents(store, tmp_path / "scratch") == 0


def test_it_ends_at_once(tmp_path: Path, store: DeltaStore) -> None:
    found = Maintainer(store, tmp_path / "scratch")
    found.start()
    found.close()
