"""The numbers in DuckDB: they are sorted into place in pieces, and the rollups are those of the plain query."""

import math
import random
from typing import Any

import duckdb
import pytest

from chiplog_collector.index import fact_tables as facts_module
from chiplog_collector.index.database import Database
from chiplog_collector.index.fact_tables import Facts
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.sql import rollups_sql
from tests.support.collector_log import LOG_ID, START_US, Rank, block_of, whole
from tests.support.index import Index
from tests.support.safeguard import proves
from tests.support.sample_log import everything

SERIES = ("metric_series", "phase_series")
VALUES = (0.0, -1.5, 3.0, 1e6, -1e6, math.nan, math.inf, -math.inf, 0.1)  # sums are exact enough in any order


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "PIECE_ROWS", 20)
    monkeypatch.setattr(facts_module, "SERIES_ROWS", 5)


def rollups(index: Index) -> dict[str, list[str]]:
    """Return the rollups: rows of a series merged, sums rounded, because the order of additions differs."""
    merged = {
        name: f"SELECT producer, key, sum(n), sum(n_numbers), min(min), max(max), min(first_seq), "
        "arg_min(first, first_seq), max(last_seq), arg_max(last, last_seq), min(first_step), max(last_step), "
        "max_by(last_step_ts, last_step::HUGEINT * 1152921504606846976 - epoch_us(last_step_ts)), min(first_ts), "
        f"max(last_ts), round(fsum(sum), 6) FROM base.{name} GROUP BY ALL"
        for name in SERIES
    }
    levels = (
        "SELECT producer, key, width, step, min(ts), sum(n_numbers), round(sum(sum), 6), min(min), max(max) "
        "FROM base.metric_levels GROUP BY ALL"
    )
    queries = merged | {"metric_levels": levels, "identified": "FROM base.identified"}
    return {name: sorted(map(repr, index.sql(query))) for name, query in queries.items()}


def computed(index: Index) -> dict[str, list[str]]:
    """Return the rollups as the plain query computes them from all rows."""
    index.database.connection.execute("BEGIN TRANSACTION")
    try:
        index.database.connection.execute(rollups_sql())
        return rollups(index)
    finally:
        index.database.connection.execute("ROLLBACK")


def history(chooser: random.Random) -> list[Any]:
    """Return blocks of a few ranks in a few runs: repeated and late ones, NaN, equal steps, consoles, merged runs."""
    ranks = [
        Rank(n + 1, f"rank{n % 3}", run_id=chooser.choice(["r", "s"]), launch=f"launch{n // 3}", restart=n // 3)
        for n in range(5)
    ]
    console = Rank(9, role="console", of=ranks[0].uuid.hex(), run_id="r", label="console")
    for rank in ranks:
        for _ in range(chooser.randrange(1, 25)):
            step, keys = chooser.randrange(-2, 12), chooser.sample(["a", "b", "c"], chooser.randrange(1, 4))
            kind = chooser.choice([EventKind.METRICS, EventKind.PHASES])
            import struct

            values = [chooser.choice(VALUES) for _ in keys]
            ts = START_US + chooser.randrange(1000)
            rank.say(kind, step, pack(keys), struct.pack(f"<{len(keys)}d", *values), ts=ts)
    for _ in range(3):
        console.say(EventKind.CONSOLE, 1, 0, b"line")
    if chooser.random() < 0.5:
        ranks[0].become(run_id="agreed", formerly=ranks[0].identity["run_id"])
    blocks = []
    for rank in [*ranks, console]:
        last = len(rank.events) - 1
        cut = chooser.randrange(last + 1)
        blocks += [block_of((rank, 0, cut)), block_of((rank, chooser.randrange(cut + 1), last))]
    chooser.shuffle(blocks)
    return blocks


@proves(
    "console-follows-owner",
    "a console's lines follow the label of its owner",
    part=".union(*(state.consoles.get(n, ()) for n in changed))",
    new="",
)
def test_the_rollups_are_those_of_the_plain_query_after_any_history(small_pieces: None, index: Index, rounds) -> None:
    for seed in rounds(2):
        chooser = random.Random(seed)
        for block in history(chooser):
            index.take(block)
            if chooser.random() < 0.2:
                index.reopen()
        assert rollups(index) == computed(index)
    assert index.sql("SELECT count(*) > 0 FROM base.metrics") == [(True,)], "pieces were sorted"


@pytest.mark.full
def test_recent_rows_become_one_sorted_piece_and_every_view_stays_the_same(index: Index, monkeypatch) -> None:
    index.take(*everything())
    before = index.views()
    assert index.sql("SELECT count(*) FROM base.metrics") == [(0,)]
    monkeypatch.setattr(facts_module, "PIECE_ROWS", 1)
    index.reopen()
    while index.database._facts.unsorted():
        index.database.sort_facts()
    assert index.views() == before
    for table in ("metrics", "phases", "system"):
        assert index.sql(f"SELECT count(*) FROM base.{table}_recent") == [(0,)]
        assert index.sql(f"SELECT count(*) > 0 FROM base.{table}") == [(True,)]


def test_a_piece_is_sorted_by_run_key_producer_and_step(index: Index, monkeypatch) -> None:
    ranks = [Rank(n, run_id=f"run{n % 2}") for n in range(4)]
    for step in (3, 1, 2):
        for rank in ranks:
            rank.log(step, b=1.0, a=2.0)
    index.take(whole(*ranks))
    monkeypatch.setattr(facts_module, "PIECE_ROWS", 24)
    index.reopen()
    index.database.sort_facts()
    rows = index.sql(
        "SELECT i.run, f.key, f.producer, f.step FROM base.metrics f JOIN base.identified i USING (producer)"
    )
    assert len(rows) == 24
    assert rows == sorted(rows)


@proves("sorting-stops-nothing", "a lack of space to sort facts stops nothing", condition=True)
def test_what_cannot_be_sorted_for_lack_of_space_stays_and_is_tried_later(
    small_pieces: None, index: Index, monkeypatch, caplog
) -> None:
    def refuse(self: Facts, table: str) -> None:
        raise duckdb.OutOfMemoryException("failed to allocate")

    rank = Rank(0)
    for step in range(24):
        rank.log(step, a=1.0)
    with monkeypatch.context() as patched:
        patched.setattr(Facts, "sort", refuse)
        index.take(whole(rank))
    assert index.sql("SELECT count(*) FROM metrics") == [(24,)]
    assert "the facts of metrics cannot be sorted: failed to allocate; trying later" in caplog.text
    assert index.database._facts.unsorted() == []
    for step in range(5):
        rank.log(step, a=2.0)
    index.take(whole(rank))
    assert index.sql("SELECT (SELECT count(*) FROM base.metrics), count(*) FROM metrics") == [(20, 29)]


@proves("rollups-need-no-rebuild", "rollups of another version are computed again without the log", condition=False)
def test_rollups_of_another_version_are_computed_again_from_the_tables(index: Index) -> None:
    index.take(*everything())
    before = index.views()
    index.database.connection.execute("DROP TABLE base.metric_series")
    index.database.connection.execute("UPDATE base.rollups SET version = -1")
    index.database.close()
    index.database = Database(index.path, LOG_ID)
    index.follower.database = index.database
    assert index.views() == before
    assert index.database.next_number > 0, "nothing was read from the log again"


def test_the_rows_of_a_series_are_merged_once_there_are_many(small_pieces: None, index: Index) -> None:
    rank = Rank(0)
    for step in range(30):
        rank.log(step, a=float(step))
        index.take(block_of((rank, len(rank.events) - 1 if step else 0, len(rank.events) - 1)))
    (n_rows,) = index.sql("SELECT count(*) FROM base.metric_series")[0]
    assert n_rows <= 2 * facts_module.SERIES_ROWS
    assert index.sql("SELECT value FROM summary") == [("29.0",)]
    assert rollups(index) == computed(index)


def test_rows_that_were_not_merged_before_a_start_are_merged_after_it(index: Index, monkeypatch) -> None:
    rank = Rank(0)
    for step in range(30):
        rank.log(step, a=float(step))
        index.take(block_of((rank, len(rank.events) - 1 if step else 0, len(rank.events) - 1)))
    monkeypatch.setattr(facts_module, "SERIES_ROWS", 5)
    index.reopen()
    index.database.sort_facts()
    assert index.sql("SELECT count(*), max(last_step) FROM base.metric_series") == [(1, 29)]


@proves("merging-stops-nothing", "a lack of space to merge rollups stops nothing", condition=True)
def test_what_cannot_be_merged_for_lack_of_space_is_tried_later(
    small_pieces: None, index: Index, monkeypatch, caplog
) -> None:
    def refuse(self: Facts, series: str) -> None:
        raise duckdb.OutOfMemoryException("failed to allocate")

    rank = Rank(0)
    with monkeypatch.context() as patched:
        patched.setattr(Facts, "merge", refuse)
        for step in range(8):
            rank.log(step, a=1.0)
            index.take(block_of((rank, len(rank.events) - 1 if step else 0, len(rank.events) - 1)))
    assert "the rollup metric_series cannot be merged: failed to allocate; trying later" in caplog.text
    assert index.sql("SELECT count(*) FROM metrics") == [(8,)]
    assert index.database._facts.unmerged() == []
