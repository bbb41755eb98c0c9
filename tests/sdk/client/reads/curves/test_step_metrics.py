"""The step metric of each key, of several definitions that match it."""

import duckdb

from chiplog_client.client import Client
from chiplog_client.reads.curves.step_metrics import read_step_metrics
from tests.support.run_builder import RunBuilder


def fill(database: duckdb.DuckDBPyConnection) -> None:
    """Write definitions of names and of patterns."""
    build = RunBuilder(database)
    build.run("run-1")
    build.label("run-1", "rank0", is_primary=True, rank=0)
    for seq, (name, step_metric) in enumerate(
        (("*", "epoch"), ("train/*", "train/step"), ("train/loss", "tokens"), ("val/x", ""))
    ):
        build.define(name, step_metric=step_metric, seq=seq)


def test_a_name_wins_over_patterns_and_a_long_pattern_over_a_short_one(client: Client) -> None:
    found = read_step_metrics(client, "run-1", ["train/loss", "train/lr", "val/x", "train/step", "epoch"])
    assert found == {"train/loss": "tokens", "train/lr": "train/step", "val/x": "epoch", "train/step": "epoch"}
    assert read_step_metrics(client, "other", ["train/loss"]) == {}
