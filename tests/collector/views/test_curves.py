"""Curves at a lower resolution: what downsample() answers is what the plain query of all points answers."""

import math
import random

import pytest

from chiplog_collector.index import fact_tables as facts_module
from tests.support.collector_log import Rank, block_of, whole
from tests.support.index import Index

STEPS = 2_000
PLAIN = """
SELECT label, step - (step % {width} + {width}) % {width} AS first, min(ts), count(nullif(value, 'nan')),
       min(nullif(value, 'nan')), round(avg(nullif(value, 'nan')), 9), max(nullif(value, 'nan'))
FROM metrics WHERE run_id = 'r' AND key = 'a' GROUP BY ALL ORDER BY ALL
"""
DOWN = "SELECT label, step, ts, n, min, round(mean, 9), max FROM downsample('r', 'a', points := {points}) ORDER BY ALL"


@pytest.fixture
def recorded(index: Index, monkeypatch: pytest.MonkeyPatch) -> Index:
    """Return an index with a long curve of two ranks, steps in no order: two thirds sorted, the rest recent."""
    monkeypatch.setattr(facts_module, "PIECE_ROWS", 900)
    index.reopen()
    chooser = random.Random(5)
    for number in (0, 1):
        rank = Rank(number)
        steps = list(range(-3, STEPS - 3))
        chooser.shuffle(steps)
        for step in steps:
            rank.log(step, a=math.nan if step % 7 == 0 or 640 <= step < 1_280 else chooser.random(), b=1.0)
        for first in range(0, len(rank.events), 400):
            index.take(block_of((rank, first, min(first + 399, len(rank.events) - 1))))
    return index


# (points, steps in a bucket): all points; about so many; read from 16 steps; from 256.
def test_a_curve_is_that_of_the_plain_query(recorded: Index) -> None:
    parts = "SELECT (SELECT count(*) FROM base.metrics) > 0, (SELECT count(*) FROM base.metrics_recent) > 0"
    assert recorded.sql(parts) == [(True, True)]
    for points, width in ((5_000, 1), (1_000, 2), (100, 20), (60, 48), (20, 112), (3, 768)):
        found = recorded.sql(DOWN.format(points=points))
        assert found == recorded.sql(PLAIN.format(width=width)), points
        assert len(found) <= 2 * (points + 1)


def test_several_keys_are_asked_for_as_a_list(recorded: Index) -> None:
    found = recorded.sql("SELECT DISTINCT key FROM downsample('r', ['a', 'b', 'nothing'], points := 10) ORDER BY key")
    assert found == [("a",), ("b",)]
    assert recorded.sql("SELECT count(*) FROM downsample('r', 'nothing')") == [(0,)]
    assert recorded.sql("SELECT count(*) FROM downsample('nothing', 'a')") == [(0,)]


def test_a_key_may_look_like_a_list(index: Index) -> None:
    rank = Rank(0)
    for key in ("[a", "[a]", "a"):
        rank.log(0, **{key: 1.0})
    index.take(whole(rank))
    query = "SELECT key FROM downsample('r', {}) ORDER BY key"
    for keys in (["[a"], ["[a]"], ["[a", "a"]):
        expected = [(key,) for key in keys]
        assert index.sql(query.format(keys)) == expected
        assert index.database.connection.execute(query.format("?"), [keys]).fetchall() == expected
        if len(keys) == 1:
            assert index.sql(query.format(f"'{keys[0]}'")) == expected
            assert index.database.connection.execute(query.format("?"), keys).fetchall() == expected


def test_steps_may_be_as_large_as_they_can_be(index: Index) -> None:
    rank = Rank(0)
    for step in (-(2**63), 0, 2**63 - 1):
        rank.log(step, a=float(step))
    index.take(block_of((rank, 0, 3)))
    assert index.sql("SELECT sum(n) FROM downsample('r', 'a', points := 2)") == [(3,)]
