"""Runs beside each other: an entry for each key, with one value per run."""

import math

import pytest

from chiplog_client.client import Client
from chiplog_client.reads.comparison.side_by_side import beside, read_described, read_phases, read_settings, read_whole
from tests.support.plotted_runs import fill_plotted_runs

fill = fill_plotted_runs


def test_runs_are_in_the_given_order_without_unknown_ones(client: Client) -> None:
    assert [row["run_id"] for row in read_described(client, ["gpt-b", "gone", "gpt-a"])] == ["gpt-b", "gpt-a"]


def test_values_of_the_config_are_beside_each_other(client: Client) -> None:
    config = {entry["key"]: entry for entry in read_settings(client, ["gpt-b", "gpt-a"])["config"]}
    assert config["lr"] == {"key": "lr", "values": [0.001, 0.0003], "is_same": False}
    assert config["warmup"]["values"] == [100, None]
    phases = {entry["key"]: entry["values"] for entry in read_phases(client, ["gpt-a", "gpt-b"])["phases"]}
    assert phases["data"] == pytest.approx([0.1, 0.2])


def test_the_whole_of_each_run_has_final_and_best_values_and_means_of_machines(client: Client) -> None:
    found = read_whole(client, ["gpt-a", "gpt-b"])
    assert {entry["key"]: entry["values"] for entry in found["final"]}["only_b"] == [None, 7.0]
    best = {entry["key"]: entry for entry in found["best"]}
    assert (best["acc"]["values"], best["acc"]["is_highest"]) == ([0.999, 0.499], True)
    assert (best["grad_norm"]["values"][0], best["grad_norm"]["is_highest"]) == (1.0, False)
    final = {entry["key"]: entry["values"] for entry in read_whole(client, ["gpt-a", "gpt-64"])["final"]}
    assert final["nan"] == ["nan", None], "a value that JSON lacks is a text"
    machines = {entry["key"]: entry for entry in found["machines"]}
    assert machines["GPU utilization"]["values"] == pytest.approx([0.5, 0.9])
    assert machines["GPU utilization"]["quantity"] == "share"


def test_rounding_and_nan_make_no_difference_and_true_is_not_1() -> None:
    values = {"nan": (math.nan, math.nan), "sum": (0.1 + 0.2, 0.3), "bool": (1, True), "lr": (0.1, 0.2)}
    rows = [
        {"run_id": run, "key": key, "of": value}
        for key, pair in values.items()
        for run, value in zip("ab", pair, strict=True)
    ]

    def same(*, is_exact: bool) -> list[str]:
        return [entry["key"] for entry in beside(rows, ["a", "b"], "of", is_exact=is_exact) if entry["is_same"]]

    assert same(is_exact=False) == ["nan", "sum"]
    assert same(is_exact=True) == []
