"""The views of analysis on random data give the rows of plain queries, which are slow and easy to read."""

import duckdb
import pytest

from tests.support.collector_log import Rank, whole
from tests.support.index import Index
from tests.support.marks import everyday
from tests.support.random_facts import SEEDS, fill_randomly, rows_of
from tests.support.safeguard import proves

PLAIN_STEP_SKEW = """
SELECT run_id, key, step, count(DISTINCT label) AS n_labels, min(value) AS min, median(value) AS median,
       max(value) AS max, first(label ORDER BY isnan(value), value DESC, label) AS max_label, max_label AS slowest_label
FROM metrics WHERE run_id IS NOT NULL GROUP BY run_id, key, step
"""


@pytest.mark.parametrize("seed", everyday(2, SEEDS))
def test_step_skew_is_that_of_the_plain_query(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    fill_randomly(database, seed)
    expected = rows_of(database, PLAIN_STEP_SKEW)
    assert rows_of(database, "SELECT * FROM step_skew") == expected and expected, f"seed {seed}"
    assert rows_of(database, "SELECT * FROM step_skew WHERE run_id = 'b' AND key = 'loss'") == [
        row for row in expected if row[0] == "b"
    ]


@proves(
    "label-counts-once",
    "a label that logged a step twice counts once in step_skew",
    part="bit_count(bit_or(p.bit))",
    new="count(*)",
)
def test_a_label_that_logged_a_step_in_two_attempts_counts_once(index: Index) -> None:
    first, again, other = Rank(0), Rank(1, rank=0, label="rank0", restart=1), Rank(2, rank=1, label="rank1")
    for rank, value in ((first, 5.0), (again, 1.0), (other, 2.0)):
        rank.log(7, loss=value)
    index.take(whole(first), whole(again, other))
    assert index.sql("SELECT n_labels, min, median, max, max_label, slowest_label FROM step_skew") == [
        (2, 1.0, 2.0, 5.0, "rank0", "rank0")
    ]
