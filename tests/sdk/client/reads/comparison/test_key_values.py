"""Final, lowest, highest and best values of metrics."""

import pytest

from chiplog_client.client import Client
from chiplog_client.reads.comparison.key_values import read_key_values
from tests.support.plotted_runs import STEPS, fill_plotted_runs

fill = fill_plotted_runs


def test_each_run_has_a_row_for_each_of_its_metrics(client: Client) -> None:
    found = {(row["run_id"], row["key"]): row for row in read_key_values(client, ["gpt-a", "gpt-b"])}
    loss = found["gpt-a", "loss"]
    assert (loss["labels"], loss["last_step"], loss["best"]) == (4, STEPS - 1, "min")
    assert (loss["final"], loss["min"]) == pytest.approx((2.5 / STEPS, 1 / STEPS))
    assert ("gpt-b", "only_b") in found and ("gpt-a", "only_b") not in found
    assert (found["gpt-b", "acc"]["best"], found["gpt-b", "acc"]["max"]) == ("max", 0.499)


def test_infinite_values_are_not_the_highest(client: Client) -> None:
    rows = read_key_values(client, ["gpt-a"])
    [norm] = [row for row in rows if row["key"] == "grad_norm"]
    assert (norm["min"], norm["max"]) == (1.0, 50.0)
    assert read_key_values(client, ["gone"]) == []
