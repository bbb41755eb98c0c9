"""What a reader keeps of a store: the same after each order of looks, merges of files and restarts."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chiplog_collector.spanning import held_rows
from chiplog_collector.spanning.held_rows import HeldRows, small_tables
from chiplog_collector.store.compaction import compact, delete_rows, read_deletions
from chiplog_collector.store.published_tables import ORDERS
from chiplog_schemas.model.change_record import Action
from tests.support.changes import change, logged
from tests.support.collector_log import LOG_ID, VIEWS, whole
from tests.support.index import Index
from tests.support.published_index import everything_published, publish_in_pieces
from tests.support.safeguard import proves
from tests.support.sample_log import everything
from tests.support.store_reader import Reader


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path)
    yield index
    index.close()


# These take most of the time, and follow from the others: compared at the end of a history alone.
ANALYSES = ("phase_times", "step_skew", "stragglers", "straggler_windows", "data_wait", "goodput", "throttle_cost")
DIRECT = [view for view in VIEWS if view not in (*ANALYSES, "gpu_events", "first_failure", "restarts")]


def rows(source: Any, views: Sequence[str] = VIEWS) -> dict[str, list[str]]:
    return {view: sorted(map(repr, source.sql(f"FROM {view}"))) for view in views}


def test_rows_are_the_same_after_pieces_were_merged_and_after_a_restart(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_rows, "_SERIES_ROWS_MAX", 1)
    payloads = everything()[:-1]
    half = len(payloads) // 2
    store = publish_in_pieces(index, tmp_path / "lake", payloads[:half], 5)
    reader = Reader(store.url, tmp_path)
    assert len(reader.sql("FROM runs")) == len(index.sql("FROM runs")) > 0
    publish_in_pieces(index, tmp_path / "lake", payloads[half:], 4)
    assert reader.store.refresh()
    assert not reader.store.refresh()
    expected = rows(index)
    assert rows(reader, DIRECT).items() <= expected.items()
    for table, order in ORDERS.items():
        while compact(store, table, order, tmp_path / "scratch", pieces_min=2):
            pass
    reader.store._look_at = 0.0  # a merge is no news
    assert reader.store.refresh()  # the table that is committed last was merged, too
    assert rows(reader) == expected
    assert all(len(reader.store._held.loaded(table)) <= 2 for table in small_tables())
    reader.close()
    again = Reader(store.url, tmp_path)
    assert rows(again) == expected
    again.close()


def test_tables_made_for_another_store_are_made_again(tmp_path: Path) -> None:
    index, store = everything_published(tmp_path)
    reader = Reader(store.url, tmp_path)
    cursor = reader.connection.cursor()
    assert HeldRows(cursor, "own", "00" * 16, store.url).loaded("runs")
    assert not HeldRows(cursor, "own", LOG_ID.hex(), store.url).loaded("runs")
    reader.close()
    index.close()


@proves(
    "deleted-rows-not-read", "readers leave out the small rows of what was deleted, before maintenance removes them"
)
@proves(
    "deleted-facts-not-read",
    "readers leave out the facts of what was deleted and recorded again, before maintenance removes them",
    part="gone.until <= f.number",
    new="true",
)
@pytest.mark.parametrize("n_merged", [1, pytest.param(200_000, marks=pytest.mark.full)])
def test_what_was_deleted_is_hidden_at_once_and_what_came_later_is_not(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_merged: int
) -> None:
    """Deleted, restored, recorded again and deleted again: every view is that of the collector."""
    monkeypatch.setattr(held_rows, "_SERIES_ROWS_MAX", n_merged)
    other, late = logged(50, run_id="other", primary=True), logged(51, run_id="late", primary=True)
    store = publish_in_pieces(index, tmp_path / "lake", [*everything()[:-1], whole(other), whole(late)], 4)
    reader = Reader(store.url, tmp_path)
    gone = [uuid for uuid in index.follower.state.producers if uuid not in (other.uuid, late.uuid)]
    stages = [
        [change(Action.DELETE, 1, producers=[*gone, late.uuid], runs=["r", "late"])],
        [change(Action.RESTORE, 2, producers=[late.uuid], runs=["late"]), whole(late)],
        [change(Action.DELETE, 3, producers=[other.uuid], runs=["other"])],
    ]
    for stage in stages:
        publish_in_pieces(index, tmp_path / "lake", stage, 1)
        reader.store.refresh()
        assert rows(reader, DIRECT) == rows(index, DIRECT)
    assert reader.sql("SELECT run_id, count(*) FROM metrics GROUP BY ALL") == [("late", 3)]
    scratch = tmp_path / "scratch"
    for table, order in ORDERS.items():
        while delete_rows(store, table, order, read_deletions(store, scratch), scratch) is not None:
            pass
    publish_in_pieces(index, tmp_path / "lake", [whole(logged(52, run_id="last", primary=True))], 1)
    reader.store.refresh()
    assert rows(reader) == rows(index)
    reader.close()


@proves(
    "cache-checkpointed-beside-queries",
    "the write-ahead log of a reader's cache does not grow while queries overlap",
    new='self._execute(f"CREATE OR REPLACE TABLE {CATALOG}.held.{table} AS {query} LIMIT 0")',
)
def test_the_cache_is_checkpointed_while_queries_overlap(tmp_path: Path) -> None:
    index, store = everything_published(tmp_path)
    reader = Reader(store.url, tmp_path)
    queries = [reader.connection.cursor() for _ in range(2)]
    for number, query in enumerate([*queries, *queries]):
        if number >= len(queries):
            query.execute("COMMIT")
        query.execute("BEGIN")
        query.execute("SELECT count(*) FROM store.held.newest_producers").fetchall()
        reader.store._held.note_silent([(index.log_id.hex(), f"host {number}", datetime.now(UTC))])
    reader.connection.execute("CHECKPOINT store")  # raises while a query needs what was replaced
    for query in queries:
        query.close()
    reader.close()
    index.close()
