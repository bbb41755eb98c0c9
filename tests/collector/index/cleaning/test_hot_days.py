"""Hot days: facts leave the database after their day, and nothing else does."""

import random
from pathlib import Path

import duckdb
import pytest

from chiplog_collector import maintenance
from chiplog_collector.index import database as database_module
from chiplog_collector.index.cleaning.hot_days import INTERVAL_S, HotDays
from chiplog_collector.index.database import Database, StaleDatabaseError
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.store.outbox import Outbox, Published
from chiplog_collector.store.published_tables import PUBLISHED
from chiplog_schemas.sql import LARGE
from tests.support.collector_log import LOG_ID, START_US
from tests.support.days import DAY_US, DAYS, history, take_on
from tests.support.index import Index, empty_database
from tests.support.safeguard import proves
from tests.support.sample_log import everything, place_of

URL = "file:///lake"
SOURCES = [source for table in PUBLISHED if table.name in LARGE and not table.is_series for source in table.sources]
SERIES = [
    f"SELECT producer, key, sum(n), min(min), max(max), max(last_seq) FROM base.{name} GROUP BY ALL ORDER BY ALL"
    for name in ("metric_series", "phase_series")
]


def hot_days(index: Index, days: int, until: int, **changed: object) -> HotDays:
    outbox = Outbox(index.directory / "store")
    outbox.set_published(Published(**{"log": LOG_ID.hex(), "url": URL, "until": until, "positions": {}} | changed))
    return HotDays(index.database, outbox, URL, days)


def facts(index: Index, above: int = -1) -> list[str]:
    return [repr(index.sql(f"FROM base.{source} WHERE flush > {above} ORDER BY ALL")) for source in SOURCES]


@proves("flush-ends-with-day", "a day of receipt ends with the same record in each database of a log", condition=False)
def test_each_database_of_a_log_has_the_same_ends_of_days(index: Index, tmp_path: Path) -> None:
    history(index)
    found = index.sql(DAYS)
    assert len(found) == 4
    database = empty_database(tmp_path / "again.duckdb")
    follower = LogFollower(database, index.directory / "log")
    chooser = random.Random(7)
    while database.next_number < index.log.next_number:
        follower.step(min(index.log.next_number, database.next_number + chooser.randrange(2, 60)))
    assert database.connection.execute(DAYS).fetchall() == found
    follower.close()
    database.close()
    at_once = empty_database(tmp_path / "at_once.duckdb")
    follower = LogFollower(at_once, index.directory / "log")
    while at_once.next_number < index.log.next_number:
        follower.step(index.log.next_number)
    assert at_once.connection.execute(DAYS).fetchall() == found
    assert at_once.connection.execute("SELECT count(DISTINCT flush) FROM base.intervals").fetchall() == [(4,)]
    follower.close()
    at_once.close()


def test_facts_of_older_days_go_and_everything_else_stays(index: Index) -> None:
    history(index)
    for table in ("metrics", "phases", "system"):
        index.database._facts.sort(table)
    take_on(index, 4, everything()[-2])
    others = {
        table.name: index.sql(f"FROM base.{table.name} ORDER BY ALL")
        for table in PUBLISHED
        if table.name not in LARGE and not table.is_series
    }
    (_, first), (_, second) = index.sql(DAYS)[1:3]
    kept, series = facts(index, second), [index.sql(query) for query in SERIES]
    now_us = START_US + 4 * DAY_US
    hot_days(index, 3, index.log.next_number).turn(0.0, now_us)
    assert index.database.dropped == first
    hot_days(index, 2, index.log.next_number).turn(0.0, now_us)
    assert index.sql("FROM base.dropped") == [(second, False)]
    assert facts(index) == kept
    assert facts(index) != facts(index, second + 200)
    assert [index.sql(query) for query in SERIES] == series
    for name, rows in others.items():
        assert index.sql(f"FROM base.{name} ORDER BY ALL") == rows, name
    points, buckets = "SELECT producer, key, count(*) FROM base.metrics WHERE NOT isnan(value)", "base.metric_levels"
    of_levels = (
        f"SELECT producer, key, sum(n_numbers) FROM {buckets} WHERE width = 16 GROUP BY ALL HAVING sum(n_numbers) > 0"
    )
    assert index.sql(f"{of_levels} ORDER BY ALL") == index.sql(f"{points} GROUP BY ALL ORDER BY ALL")
    index.reopen(has_views=False)
    assert index.database.dropped == second


@proves("only-published-facts-dropped", "facts stay in the database until the store has them", condition=False)
def test_facts_that_are_not_published_stay(index: Index) -> None:
    history(index)
    before = facts(index)
    until = index.log.next_number
    for changed in ({"until": 3}, {"log": "00" * 16}, {"url": "file:///other"}, {"is_foreign": True}):
        hot_days(index, 1, **({"until": until} | changed)).turn(0.0, START_US + 9 * DAY_US)
        assert facts(index) == before, changed
        assert index.sql("FROM base.dropped") == [], changed


def test_nothing_goes_without_hot_days_or_before_the_publisher_has_asked(index: Index) -> None:
    history(index)
    before = facts(index)
    HotDays(index.database, Outbox(index.directory / "none"), URL, 1).turn(0.0, START_US + 9 * DAY_US)
    hot_days(index, 0, index.log.next_number).turn(0.0, START_US + 9 * DAY_US)
    assert facts(index) == before


def test_it_looks_once_an_hour(index: Index) -> None:
    history(index, 2)
    turns = hot_days(index, 1, index.log.next_number)
    turns.turn(5.0, START_US)
    turns.turn(5.0 + INTERVAL_S - 1, START_US + 9 * DAY_US)
    assert index.database.dropped == -1
    turns.turn(5.0 + INTERVAL_S, START_US + 9 * DAY_US)
    assert index.database.dropped >= 0


def test_a_query_sees_all_facts_of_a_day_or_none(index: Index) -> None:
    history(index)
    reader = index.database.connection.cursor()
    reader.execute("BEGIN TRANSACTION READ ONLY")
    query = "SELECT (SELECT count(*) FROM base.metrics_recent), (SELECT coalesce(max(flush), -1) FROM base.dropped)"
    before = reader.execute(query).fetchall()
    hot_days(index, 1, index.log.next_number).turn(0.0, START_US + 9 * DAY_US)
    assert reader.execute(query).fetchall() == before
    reader.execute("ROLLBACK")
    after = reader.execute(query).fetchall()
    assert after[0][0] < before[0][0]
    assert after[0][1] == index.database.dropped
    reader.close()


@proves("compaction-keeps-series", "compaction keeps the series of facts that have left the database", condition=False)
def test_compaction_keeps_the_series_of_dropped_facts(index: Index) -> None:
    history(index)
    hot_days(index, 1, index.log.next_number).turn(0.0, START_US + 9 * DAY_US)
    series, dropped = [index.sql(query) for query in SERIES], index.database.dropped
    place = place_of(index)
    maintenance.compact(place)
    with duckdb.connect(str(place.index)) as connection:
        assert [connection.execute(query).fetchall() for query in SERIES] == series
        assert connection.execute("FROM base.dropped").fetchall() == [(dropped, False)]


@proves("series-of-dropped-facts-stay", "rollups are not made of the facts that are left", condition=False)
def test_rollups_of_another_version_are_not_made_of_the_facts_that_are_left(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(index)
    hot_days(index, 1, index.log.next_number).turn(0.0, START_US + 9 * DAY_US)
    index.database.close()
    monkeypatch.setattr(database_module, "ROLLUPS", database_module.ROLLUPS + 1)
    with pytest.raises(StaleDatabaseError, match="lacks facts"):
        Database(index.path, LOG_ID)
    monkeypatch.undo()
    Database(index.path, LOG_ID).close()
