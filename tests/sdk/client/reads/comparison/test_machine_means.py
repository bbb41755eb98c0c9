"""Means of the samples of machines."""

import pytest

from chiplog_client.client import Client
from chiplog_client.reads.comparison.machine_means import read_machine_means
from tests.support.plotted_runs import fill_plotted_runs

fill = fill_plotted_runs


def test_each_run_has_the_means_of_its_own_samples(client: Client) -> None:
    found = read_machine_means(client, ["gpt-b", "gpt-a", "again"])
    means = {row["run_id"]: row["mean"] for row in found if row["name"] == "hw.gpu.utilization"}
    assert means == pytest.approx({"gpt-a": 0.5, "gpt-b": 0.9})


def test_a_run_without_samples_has_none(client: Client) -> None:
    assert read_machine_means(client, ["again"]) == []
