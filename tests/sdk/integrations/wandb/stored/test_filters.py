"""Filters and orders as SQL: no text of the caller is in it, and what is unknown raises ValueError."""

from datetime import UTC, datetime
from typing import Any

import duckdb
import pytest

from chiplog.integrations.wandb.stored.filters import Conditions

HOSTILE = "x'] OR TRUE -- \"; DROP TABLE runs"
RUNS = """
CREATE TABLE runs AS FROM (VALUES
    ('a', 'first', 'g1', 'train', ['x', 'y'], 'finished', TIMESTAMP '2026-01-01 12:00:00'),
    ('b', NULL, 'g2', NULL, ['y'], 'failed', TIMESTAMP '2026-01-02 12:00:00'),
    ('c', 'third', NULL, 'eval', NULL, 'running', TIMESTAMP '2026-01-03 12:00:00')
) t(run_id, name, run_group, job_type, tags, state, created_at);
CREATE TABLE configs AS FROM (VALUES
    ('a', MAP {'lr': '0.1'::JSON, 'opt': '{"name": "adam", "b~/": [1, 2]}', 'on': 'true', 'none': 'null', 'a.b': '1'}),
    ('b', MAP {'lr': '10'::JSON, 'opt': '{"name": "sgd"}', 'on': 'false', 'seed': '"7"'})
) t(run_id, config);
CREATE TABLE summaries AS FROM (VALUES
    ('a', MAP {'val/loss': '0.5'::JSON, 'acc': '{"max": 0.75}'}),
    ('b', MAP {'val/loss': '"nan"'::JSON}),
    ('c', MAP {'val/loss': '0.25'::JSON})
) t(run_id, summary);
"""
QUERY = """
SELECT r.run_id FROM runs r LEFT JOIN configs c ON c.run_id = r.run_id LEFT JOIN summaries s ON s.run_id = r.run_id
WHERE {} ORDER BY {}
"""


@pytest.fixture(scope="module")
def database() -> Any:
    with duckdb.connect() as connection:
        connection.execute(RUNS)
        yield connection


def found(database: Any, filters: Any, order: str = "+created_at") -> str:
    """Return the IDs of the runs."""
    conditions = Conditions()
    query = QUERY.format(conditions.where(filters), conditions.order(order))
    assert HOSTILE not in query and "DROP" not in query
    return "".join(row[0] for row in database.execute(query, conditions.params).fetchall())


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "abc"),
    ({"state": "finished"}, "a"),
    ({"state": {"$ne": "finished"}}, "bc"),
    ({"group": {"$in": ["g1", "g2"]}}, "ab"),
    ({"group": {"$nin": ["g1"]}}, "bc"),
    ({"group": None}, "c"),
    ({"group": {"$exists": True}}, "ab"),
    ({"jobType": {"$regex": "^(tr|ev)"}}, "ac"),
    ({"display_name": "b"}, "b"),
    ({"display_name": {"$regex": "ir"}}, "ac"),
    ({"tags": "y"}, "ab"),
    ({"tags": {"$in": ["x", "z"]}}, "a"),
    ({"tags": {"$nin": ["x"]}}, "bc"),
    ({"tags": {"$exists": False}}, "c"),
    ({"tags": None}, "c"),
    ({"tags": {"$regex": "^x"}}, "a"),
    ({"created_at": {"$gte": "2026-01-02T12:00:00Z"}}, "bc"),
    ({"created_at": {"$lt": datetime(2026, 1, 2, 12, tzinfo=UTC)}}, "a"),
    ({"config.lr": 0.1}, "a"),
    ({"config.lr.value": 0.1}, "a"),
    ({"config.lr": {"$gt": 0.1, "$lte": 10}}, "b"),
    ({"config.lr": {"$not": {"$gt": 5}}}, "ac"),
    ({"$not": {"config.lr": {"$gt": 5}}}, "ac"),
    ({"config.lr": {"$gt": "0"}}, ""),  # another type
    ({"config.seed": 7}, ""),
    ({"config.seed": "7"}, "b"),
    ({"config.on": True}, "a"),
    ({"config.on": 1}, ""),
    ({"config.on": {"$in": [False, "x"]}}, "b"),
    ({"config.on": {"$in": []}}, ""),
    ({"config.none": None}, "abc"),
    ({"config.none": {"$exists": True}}, "a"),
    ({"config.opt.name": "adam"}, "a"),
    ({"config.opt.name.value": {"$regex": "^s"}}, "b"),
    ({"config.opt.b~/": {"$exists": True}}, "a"),
    ({"config.a.b": 1}, "a"),
    ({"summary_metrics.val/loss": {"$lt": 1}}, "ac"),
    ({"summary_metrics.val.loss": {"$lt": 0.3}}, "c"),
    ({"summary_metrics.acc.max": {"$gte": 0.75}}, "a"),
    ({"$or": [{"config.lr": 10}, {"state": "running"}]}, "bc"),
    ({"$and": [{"config.lr": {"$exists": True}}, {"$or": [{"tags": "x"}, {"tags": "z"}]}]}, "a"),
    ({"config.lr": 0.1, "state": "failed"}, ""),
    ({"state": 3}, ""),
    *(({name: HOSTILE}, "") for name in ("state", "tags", "display_name", "config.lr")),
    ({f"config.{HOSTILE}": 1}, ""),
    ({f"summary_metrics.{HOSTILE}.{HOSTILE}": {"$exists": True}}, ""),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS, ids=lambda value: repr(value)[:60])
def test_filters_find_the_runs_that_mongodb_would(database: Any, filters: Any, expected: str) -> None:
    assert found(database, filters) == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("+created_at", "abc"),
        ("-created_at", "cba"),
        ("created_at", "abc"),
        ("-config.lr", "bac"),
        ("+config.lr.value", "abc"),
        ("+summary_metrics.val/loss", "cab"),
        ("-display_name", "cab"),
    ],
)
def test_runs_are_ordered_by_a_field_and_those_without_it_are_last(database: Any, order: str, expected: str) -> None:
    assert found(database, {}, order) == expected


@pytest.mark.parametrize(
    "filters",
    [
        *({name: "x"} for name in ("username", "name", "config.", "config", "$nor", "$where", HOSTILE, 3)),
        *({"config.lr": {operator: 1}} for operator in ("$mod", "gt", HOSTILE, "$in", "$regex")),
        *({"config.lr": value} for value in ({}, [1], {"$eq": {"a": 1}}, object())),
        *({"$and": value} for value in ([], {}, [3])),
        *({"created_at": value} for value in ("yesterday", 3, {"$regex": "2026"})),
        [],
        "x",
    ],
)
def test_what_is_unknown_raises_value_error(database: Any, filters: Any) -> None:
    with pytest.raises(ValueError):
        found(database, filters)


@pytest.mark.parametrize("order", ["heartbeat_at", "+tags", HOSTILE])
def test_unknown_orders_raise_value_error(database: Any, order: str) -> None:
    with pytest.raises(ValueError):
        found(database, {}, order)
