"""Several collectors on one store: the rows of one collector that had all of it."""

import os
import random
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from chiplog_collector.store.delta_store import DeltaStore
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import VIEWS, Rank, block_of, whole
from tests.support.index import Index
from tests.support.marks import everyday
from tests.support.published_index import publish_in_pieces
from tests.support.safeguard import proves
from tests.support.sample_log import in_blocks, sample_ranks
from tests.support.store_reader import Reader

# Rows that collectors add by what they know: a config of a label is refused only where the primary is known.
OWN_WORDS = "('config_refused', 'file_refused', 'primary_refused')"


def rows(source: Any, view: str) -> list[str]:
    where = f"WHERE kind NOT IN {OWN_WORDS}" if view == "events" else ""
    shown = "* EXCLUDE (last_seen_at)" if view == "labels" else "*"  # that is when an event was received
    return sorted(map(repr, source.sql(f"SELECT {shown} FROM {view} {where}")))


@pytest.mark.parametrize(
    ("n_logs", "seed"),
    everyday(1, [(3, 2), (2, 1), (3, 3), (2, 4)]),
)
def test_a_run_in_several_logs_is_the_run_of_one(tmp_path: Path, n_logs: int, seed: int) -> None:
    chooser = random.Random(seed)
    ranks = sample_ranks(20, chooser)
    one = Index(tmp_path)
    one.take(*(whole(rank) for rank in ranks))
    logs = [Index(tmp_path / f"collector {number}", bytes([200 + number]) * 16) for number in range(n_logs)]
    parts: list[list[Any]] = [[] for _ in logs]
    homes = {rank.label: chooser.randrange(n_logs) for rank in ranks}
    homes["agent"] = homes["rank2"]  # whose end it reports
    for rank in ranks:
        is_moved = chooser.random() < 0.3 and rank.uuid not in (ranks[2].uuid, ranks[-1].uuid)
        parts[chooser.randrange(n_logs) if is_moved else homes[rank.label]] += in_blocks(rank, chooser)
    for index, payloads in zip(logs, parts, strict=True):
        publish_in_pieces(index, tmp_path / "lake", payloads)
    url = f"file://{tmp_path}/lake"
    readers: list[Any] = [Reader(url, tmp_path)]
    readers += [Reader(url, index.directory, index.database.connection, index.log_id.hex()) for index in logs]
    for view in VIEWS:
        # The order in which artifacts were logged is that of their receipt: readers agree about it.
        expected = rows(readers[0] if view.startswith("artifact") else one, view)
        for reader in readers:
            assert rows(reader, view) == expected, view
    for reader in readers:
        reader.close()
    for index in (one, *logs):
        index.close()


@proves("doubled-events-left-out", "an event that two logs have counts once")
@proves("moved-producer-is-one", "a rank whose agent moves to another collector stays one label")
def test_a_rank_that_moves_to_another_collector_stays_one(tmp_path: Path) -> None:
    rank = Rank(0)
    for step in range(10):
        rank.log(step, loss=float(step))
    first, second = (Index(tmp_path / f"collector {number}", bytes([200 + number]) * 16) for number in range(2))
    publish_in_pieces(first, tmp_path / "lake", [block_of((rank, 0, 6))], 1)
    reader = Reader(f"file://{tmp_path}/lake", second.directory, second.database.connection, second.log_id.hex())
    assert reader.sql("SELECT run_id, label, attempt FROM labels") == [("r", "rank0", 0)]
    # The block that the first one had not acknowledged goes to the second one, too.
    publish_in_pieces(second, tmp_path / "lake", [whole(rank)], 1)
    assert reader.store.refresh()
    assert reader.sql("SELECT run_id, label, attempt FROM labels") == [("r", "rank0", 0)]
    assert reader.sql("SELECT run_id, stored FROM completeness") == [("r", 11)]
    # Each value once, also in what was summed up.
    for view in ("metrics", "keys", "summary", "run_summary", "labels", "console", "events"):
        assert rows(reader, view) == rows(second, view), view
    reader.close()
    first.close()
    second.close()


def in_two_logs(directory: Path) -> tuple[str, Index]:
    """Publish a rank whose first events two logs have; return the store, and the index that has all of it."""
    rank = Rank(0)
    for step in range(10):
        rank.log(step, loss=float(step))
    first, second = (Index(directory / f"collector {number}", bytes([200 + number]) * 16) for number in range(2))
    publish_in_pieces(first, directory / "lake", [block_of((rank, 0, 6))], 1)
    publish_in_pieces(second, directory / "lake", [whole(rank)], 1)
    first.close()
    return f"file://{directory}/lake", second


def test_views_are_made_again_after_files_that_were_read_for_sums_are_gone(tmp_path: Path) -> None:
    url, index = in_two_logs(tmp_path)
    reader = Reader(url, tmp_path)
    assert reader.sql("SELECT count(*) > 0 FROM store.held.doubled") == [(True,)]
    for path in (tmp_path / "lake" / "metrics").rglob("*.parquet"):
        path.unlink()  # merged into others, and removed after seven days
    reader.store._shape = None  # as after an error of the store
    reader.store._look_at = reader.store._list_at = 0.0
    reader.store.turn()
    assert not reader.store.cold.trouble
    assert reader.store._shape is not None
    assert reader.sql("SELECT run_id FROM runs", {}) == [("r",)]
    reader.close()
    index.close()


@proves(
    "unread-doubled-events-stop-nothing",
    "events in two logs that cannot be read are one line, and no query waits",
    value="()",
)
@pytest.mark.parametrize("fault", ["missing", "damaged", "too large"])
def test_a_store_whose_doubled_events_cannot_be_read_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    url, index = in_two_logs(tmp_path)
    path, *_ = (tmp_path / "lake" / "metrics").rglob("*.parquet")
    data = path.read_bytes()
    if fault == "missing":
        path.unlink()
    elif fault == "damaged":
        path.write_bytes(data[:50])
    else:
        monkeypatch.setattr("chiplog_collector.spanning.cold_files.GB", 1e-9)
    reader = Reader(url, tmp_path)

    def look() -> None:
        reader.store._look_at = reader.store._list_at = 0.0
        reader.store.turn()

    look()
    assert reader.store.cold.seen.is_set()
    assert not reader.store.cold.trouble
    assert reader.sql("SELECT run_id FROM runs", {}) == [("r",)]
    [line] = caplog.messages
    assert line.startswith(f"{url}: sums count events twice that two logs have, whose files cannot be read: ")
    path.write_bytes(data)
    monkeypatch.undo()
    look()
    assert rows(reader, "summary") == rows(index, "summary")
    reader.close()
    index.close()


@proves(
    "gone-log-holds-no-version", "a log that is gone keeps no version of an artifact from its number", value="set()"
)
def test_a_version_of_an_artifact_in_two_logs_has_a_number_once_each_log_that_lives_has_passed_it(
    tmp_path: Path,
) -> None:
    lake, indexes = tmp_path / "lake", []
    for number in range(2):
        rank = Rank(number)
        rank.say(EventKind.ARTIFACT, "p", "model", "model", bytes([number]) * 32, 0, 0, "{}", "")
        indexes.append(Index(tmp_path / f"collector {number}", bytes([200 + number]) * 16))
        publish_in_pieces(indexes[-1], lake, [whole(rank)], 1)
    quiet = DeltaStore(f"file://{lake}", "dd" * 16)
    quiet.put_heartbeat({"idle_at": None})
    index = indexes[1]
    readers = [Reader(quiet.url, tmp_path)]
    readers.append(Reader(quiet.url, index.directory, index.database.connection, index.log_id.hex()))
    query = "SELECT digest, version FROM artifacts ORDER BY digest"

    def found() -> list[Any]:
        answers = []
        for reader in readers:
            reader.store.refresh()
            answers.append([version for _, version in reader.sql(query)])
        assert answers[0] == answers[1]
        return answers[0]

    assert found() == [None, None]
    late = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
    quiet.put_heartbeat({"idle_at": late})
    assert found() == [0, None], "the first log may have cut a piece that comes before the second version"
    DeltaStore(quiet.url, indexes[0].log_id.hex()).put_heartbeat({"idle_at": late})
    assert found() == [0, 1]
    quiet.put_heartbeat({"idle_at": None})
    quiet.put_heartbeat({"idle_at": None, "again": True})
    for reader in readers:
        reader.store._held.note_passed({quiet._log: 0})
    assert found() == [None, None]
    quiet.retire(quiet._log)
    for reader in readers:
        reader.store._passed_marks = set()
    assert found() == [0, 1], "it is gone"
    for reader in readers:
        reader.close()
    for index in indexes:
        index.close()


@proves(
    "unpublished-version-waits", "a version that is not published has no number while another log lives", value="own"
)
@proves("version-waits-for-new-log", "a version of an artifact also waits for a log without a piece", new="pass")
def test_a_version_has_no_number_while_another_log_may_publish_an_earlier_one(tmp_path: Path) -> None:
    other, own = (Index(tmp_path / f"collector {number}", bytes([200 + number]) * 16) for number in range(2))
    ranks = [Rank(number) for number in range(2)]
    for number, rank in enumerate(ranks):
        rank.say(EventKind.ARTIFACT, "p", "model", "model", bytes([number]) * 32, 0, 0, "{}", "")
    ranks[1].say(EventKind.ARTIFACT, "p", "own", "model", bytes([1]) * 32, 0, 0, "{}", "")
    own.take(whole(ranks[1]))
    url = f"file://{tmp_path}/lake"
    reader = Reader(url, own.directory, own.database.connection, own.log_id.hex())

    def found() -> list[tuple[Any, ...]]:
        reader.store.refresh()
        return [version for (version,) in reader.sql("SELECT version FROM artifacts ORDER BY name, digest")]

    assert found() == [0, 0], "there is no other log"
    store = DeltaStore(url, other.log_id.hex())
    store.put_heartbeat({"host": "other"})
    assert found() == [None, None], "it may have cut an earlier piece"
    publish_in_pieces(own, tmp_path / "lake", [], 1)
    assert found() == [None, None]
    publish_in_pieces(other, tmp_path / "lake", [whole(ranks[0])], 1)
    assert found() == [None, 0, 0], "it was cut later"
    for log in (own, other):
        late = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
        DeltaStore(url, log.log_id.hex()).put_heartbeat({"idle_at": late})
    assert found() == [1, 0, 0]
    for opened in (reader, other, own):
        opened.close()


@proves(
    "silent-collector-is-unknown",
    "labels of a collector that is silent are unknown, and not crashed",
    part="coalesce(h.state, 'unknown')",
    new="h.state",
)
@proves(
    "silent-collector-pending-unknown",
    "what a silent collector has and did not publish is unknown, not zero",
    part="(h.role = 'rank' AND s.log IS NOT NULL AND h.state IS NULL)",
    new="false",
)
@proves("former-log-not-silent", "a log that continues under a new ID is not silent under its former one")
@pytest.mark.parametrize("is_renewed", [False, True])  # under a new log ID
def test_labels_of_a_silent_collector_are_unknown_until_it_is_heard_of(tmp_path: Path, is_renewed: bool) -> None:
    rank = Rank(0)
    index = Index(tmp_path / "collector")
    store = publish_in_pieces(index, tmp_path / "lake", [whole(rank)], 1)
    store.put_heartbeat({"host": "machine-7"})
    reader = Reader(store.url, tmp_path)
    query = "SELECT l.state, r.state, r.ended_at FROM labels l JOIN runs r USING (run_id)"
    assert reader.sql(query) == [("running", "running", None)]
    [(stored,)] = reader.sql("SELECT stored FROM completeness WHERE pending IS NOT NULL")
    beat = tmp_path / "lake" / "heartbeats" / index.log_id.hex()
    before = time.time() - 200
    os.utime(beat, (before, before))
    reader.store.refresh()
    assert reader.sql(query) == [("unknown", "unknown", None)]
    [(message,)] = reader.sql("SELECT message FROM events WHERE kind = 'collector_silent'")
    assert "machine-7 is silent since" in message
    counts = "SELECT produced, stored, lost, pending FROM completeness"
    assert reader.sql(counts) == [(None, stored, 0, None)]
    is_silent = "SELECT is_silent FROM run_places"
    assert reader.sql(is_silent) == [(True,)]
    if is_renewed:
        renewed = DeltaStore(store.url, "ff" * 16)
        for former in ("x", ["0", 1]):
            renewed.put_heartbeat({"host": "machine-7", "former": former})
            reader.store.refresh()
            assert reader.sql(is_silent) == [(True,)]
        renewed.put_heartbeat({"host": "machine-7", "former": [index.log_id.hex()]})
    else:
        store.put_heartbeat({"host": "machine-7"})
    reader.store.refresh()
    assert reader.sql(query) == [("running", "running", None)]
    assert reader.sql(is_silent) == [(False,)]
    assert reader.sql("SELECT message FROM events WHERE kind = 'collector_silent'") == []
    assert reader.sql(counts) == [(stored, stored, 0, 0)]
    reader.close()
    index.close()


def test_where_a_run_lives_and_up_to_when_it_is_known(tmp_path: Path) -> None:
    near, far = Rank(0), Rank(1)
    first, second = (Index(tmp_path / f"collector {number}", bytes([200 + number]) * 16) for number in range(2))
    query = "SELECT run_id, collector, log, is_here, n_labels, is_silent, seen_at FROM run_places ORDER BY log"
    publish_in_pieces(first, tmp_path / "lake", [whole(near)], 1)
    assert first.sql(query) == [], "nothing is known of it without a store"
    store = publish_in_pieces(second, tmp_path / "lake", [whole(far)], 1)
    reader = Reader(store.url, first.directory, first.database.connection, first.log_id.hex())
    own = ("r", socket.gethostname(), first.log_id.hex(), True, 1, False, None)
    beat = tmp_path / "lake" / "heartbeats" / second.log_id.hex()
    beat.unlink()
    reader.store.refresh()
    [(cut_at,)] = reader.sql(f"SELECT max(cut_at) FROM store.held.collectors WHERE log = '{second.log_id.hex()}'")
    found = reader.sql(query)
    assert found[0] == own
    assert found[1][2:] == (second.log_id.hex(), False, 1, False, cut_at), "without a heartbeat its last piece counts"
    # What waits at the collector is not here: the view is as old as the oldest of it.
    store.put_heartbeat({"host": "machine-7", "lag_s": 100.0})
    before = int(time.time()) - 20
    os.utime(beat, (before, before))
    reader.store.refresh()
    seen_at = datetime.fromtimestamp(before - 100, UTC).replace(tzinfo=None)
    other = ("r", "machine-7", second.log_id.hex(), False, 1, False, seen_at)
    assert reader.sql(query) == [own, other]
    # The next heartbeat makes the view younger, also if nothing else came.
    [(number,)] = reader.sql("SELECT next_number FROM merged.position")
    store.put_heartbeat({"host": socket.gethostname(), "lag_s": "much"})
    reader.store.refresh()
    names = [(name, seen_at is None) for _, name, _, _, _, _, seen_at in reader.sql(query)]
    host = socket.gethostname()
    assert names == [(f"{host}/{'c8' * 3}", True), (f"{host}/{'c9' * 3}", False)]
    assert reader.sql("SELECT next_number FROM merged.position") > [(number,)], "pages ask again"
    reader.close()
    first.close()
    second.close()
