"""The step of each node over time: of its primary or lowest rank, by the metric with the most values."""

from collections.abc import Iterator

import pytest

from chiplog_client.client import Client, connect
from chiplog_client.reads.system.node_steps import ROWS_MAX, progress_sql, read_step_span
from tests.support.hand_written import hand_written
from tests.support.run_builder import RunBuilder
from tests.support.sampled_run import fill_sampled_run
from tests.support.slow_ranks import fill_slow_ranks


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("sampled")
    with hand_written(root) as database:
        fill_sampled_run(database)
        RunBuilder(database).metrics({"rare": 1}, steps=[9000], at=0, where="run_id = 'sampled' AND rank = 0")
    with connect(dir=str(root), start=False) as client:
        yield client


def test_the_metric_with_the_most_values_has_the_steps(client: Client) -> None:
    assert read_step_span(client, "sampled") == {"n": 1000, "first_step": 0, "last_step": 499, "seconds": 1000}
    assert read_step_span(client, "many") is None
    text = f"WITH {progress_sql(1000)} SELECT node, count(*), max(step) FROM progress GROUP BY node ORDER BY node"
    assert client.sql(text, {"run": "sampled"}).tuples() == [("node-1-0", 500, 499), ("node-1-1", 500, 499)]


def test_long_runs_are_read_in_buckets(client: Client) -> None:
    text = f"WITH {progress_sql(ROWS_MAX * 20)} SELECT count(*), max(step) FROM progress"
    assert client.sql(text, {"run": "sampled"}).tuples() == [(4, 256)], "of 256 steps, and two nodes"


def test_a_run_with_phases_only_has_their_steps(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("slow")
    with hand_written(root) as database:
        fill_slow_ranks(database)
    with connect(dir=str(root), start=False) as client:
        assert read_step_span(client, "even") == {"n": 100, "first_step": 0, "last_step": 99, "seconds": 99}
        text = f"WITH {progress_sql(100)} SELECT node, count(*) FROM progress GROUP BY node"
        assert client.sql(text, {"run": "even"}).tuples() == [("node0", 100)], "of rank0 alone"
