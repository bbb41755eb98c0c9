"""Following the log: what one transaction holds, and whose fault a failed one is."""

from pathlib import Path

import duckdb
import pytest

import chiplog_collector.index.database as database_module
import chiplog_collector.index.follower as follower_module
from chiplog_collector.index.fact_tables import Facts
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.receiver.lost_tail import append_receipt_for_lost_tail
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.segment_format import list_segments
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.collector_log import LOG_ID, Rank, receipt, whole
from tests.support.index import Index, empty_database
from tests.support.safeguard import proves


def test_damage_that_a_flush_meets_is_not_the_records_fault(index: Index, monkeypatch) -> None:
    rank = Rank(0)
    rank.log(1, a=1.0)

    def refuse(self, table, columns):
        raise duckdb.Error("Corrupt database file: computed checksum 1 does not match stored checksum 2")

    with monkeypatch.context() as patched:
        patched.setattr(Facts, "insert", refuse)
        with pytest.raises(duckdb.Error, match="Corrupt database file"):
            index.take(whole(rank))
    assert index.sql("SELECT count(*) FROM base.quarantine") == [(0,)]


@pytest.mark.parametrize("bound", ["rows", "bytes"])
def test_a_flush_of_texts_is_bounded_too(index: Index, monkeypatch, bound) -> None:
    monkeypatch.setattr(follower_module, "_READ_BYTES", 1000)
    monkeypatch.setattr(follower_module, *{"rows": ("INDEX_FLUSH_ROWS", 30), "bytes": ("_FLUSH_BYTES", 3000)}[bound])
    flushes = []
    original = database_module.Database.write
    monkeypatch.setattr(
        database_module.Database, "write", lambda self, *rest: flushes.append(rest[0].n_events) or original(self, *rest)
    )
    ranks = [Rank(number) for number in range(10)]
    for rank in ranks:
        for step in range(10):
            rank.say(EventKind.TEXT, step, "key", "text")
    index.take(*(whole(rank) for rank in ranks))
    assert sum(flushes) == 110
    assert max(flushes) < 60


@proves("foreign-end-stops-nothing", "a store of another log with this ID, of a copied directory, stops no index")
def test_ends_that_are_no_receipt_of_this_log_stop_nothing(index: Index) -> None:
    """Records 0 and 1 are a block and its receipt, and so on: a flush can end at odd numbers alone."""
    for number in range(4):
        rank = Rank(number)
        rank.log(1, a=1.0)
        index.log.append(Kind.BLOCK, whole(rank))
        index.log.append(Kind.RECEIPT, receipt(index.log.next_number))
    index.log.commit()
    index.follower.close()
    index.follower = LogFollower(index.database, index.directory / "log", [1, 2, 4, 5, 99])
    index.follow()
    assert index.sql("SELECT DISTINCT flush FROM base.intervals ORDER BY flush") == [(1,), (3,), (5,), (7,)]
    assert index.follower.missed_ends == [2, 4]


def test_an_end_of_the_store_that_the_log_has_lost_stops_no_index(index: Index, tmp_path: Path) -> None:
    """A power failure has cut off the end of the log that was published before."""
    index.log._segment_bytes = 500
    ranks = [Rank(number) for number in range(8)]
    for rank in ranks:
        rank.log(1, a=1.0)
    index.take(*(whole(rank) for rank in ranks[:2]))
    index.take(*(whole(rank) for rank in ranks[2:6]))
    end = index.log.next_number
    index.log.close()
    segments = list_segments(index.directory / "log")
    segments[-1][1].unlink()
    index.log = SegmentLog(index.directory / "log", LOG_ID)
    assert index.log.lost_tail is not None
    lost_from = index.log.lost_tail[0]
    append_receipt_for_lost_tail(index.log)
    for rank in ranks[6:]:
        index.log.append(Kind.BLOCK, whole(rank))
        index.log.append(Kind.RECEIPT, receipt(index.log.next_number))
    index.log.commit()
    index.follower.close()
    index.database.close()
    index.database = empty_database(tmp_path / "rebuilt.duckdb")
    index.follower = LogFollower(index.database, index.directory / "log", [end - 1])
    for _ in range(10):
        index.follower.step(index.log.next_number)
    assert index.database.next_number == index.log.next_number
    assert index.follower.missed_ends == []
    flushes = [flush for (flush,) in index.sql("SELECT DISTINCT flush FROM base.intervals ORDER BY flush")]
    assert all(flush < lost_from or flush >= end for flush in flushes), "none spans what the store has"
    assert len(flushes) >= 2
