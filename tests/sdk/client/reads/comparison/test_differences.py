"""What differs between two runs: values at the same step, configs, phases, means of machines."""

import math
from pathlib import Path
from typing import Any

import pytest

from chiplog_client.client import Client, connect
from chiplog_client.reads.comparison.differences import compare_runs
from tests.support.hand_written import hand_written, kept_open
from tests.support.plotted_runs import STEPS, fill_plotted_runs
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves

fill = fill_plotted_runs  # for the fixture `client`


@pytest.fixture(scope="module")
def found(client: Client) -> dict[str, Any]:
    return compare_runs(client, "gpt-a", "gpt-b")


def metric(found: dict[str, Any], key: str) -> dict[str, Any]:
    [row] = [row for row in found["metrics"] if row["key"] == key]
    return row


def test_metrics_are_compared_at_the_last_step_that_both_runs_have(found: dict[str, Any]) -> None:
    loss = metric(found, "loss")
    step = STEPS // 2 - 1
    assert (loss["step"], loss["a_last_step"], loss["b_last_step"]) == (step, STEPS - 1, step)
    assert (loss["a"], loss["b"]) == pytest.approx((2.5 / (step + 1), 5 / (step + 1)))  # means of four ranks
    assert (loss["a_final"], loss["b_final"]) == pytest.approx((2.5 / STEPS, 5 / (step + 1)))


@proves("same-step-compared", "metrics of two runs are compared at a step that both have", condition=False)
@pytest.mark.full
def test_runs_that_log_at_different_steps_are_compared_at_a_common_one(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_plotted_runs(database)
        build = RunBuilder(database)
        build.delete("metrics", "run_id = 'gpt-a' AND step % 10 <> 3")
        build.delete("metrics", "run_id = 'gpt-b' AND step % 7 <> 2")
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        loss = metric(compare_runs(client, "gpt-a", "gpt-b"), "loss")
    assert (loss["step"], loss["a_last_step"], loss["b_last_step"]) == (443, 993, 499)
    assert (loss["a"], loss["b"]) == pytest.approx((2.5 / 444, 5 / 444))


def test_the_best_value_is_the_lowest_unless_a_definition_says_max(found: dict[str, Any]) -> None:
    loss, acc = metric(found, "loss"), metric(found, "acc")
    assert (loss["best"], loss["a_best"]) == ("min", pytest.approx(1 / STEPS))
    assert (acc["best"], acc["a_best"], acc["b_best"]) == ("max", 0.999, 0.499)


def test_infinite_values_are_not_the_best(found: dict[str, Any]) -> None:
    norm = metric(found, "grad_norm")
    assert (norm["a_max"], norm["a_min"]) == (50.0, 1.0)
    assert math.isinf(norm["a"])


def test_a_key_of_one_run_has_no_common_step(found: dict[str, Any]) -> None:
    row = metric(found, "only_b")
    assert (row["step"], row["a_last_step"], row["b_final"]) == (None, None, 7.0)


def test_configs_differ_in_values_and_in_keys(found: dict[str, Any]) -> None:
    assert found["config"] == [
        {"key": "lr", "a": 0.0003, "b": 0.001, "in_a": True, "in_b": True},
        {"key": "warmup", "a": None, "b": 100, "in_a": False, "in_b": True},
    ]
    assert found["config_equal"] == 1


def test_phases_and_machines_have_the_means_of_both(found: dict[str, Any]) -> None:
    phases = {row["phase"]: row for row in found["phases"]}
    assert (phases["data"]["a_mean_s"], phases["data"]["b_mean_s"]) == pytest.approx((0.1, 0.2))
    assert phases["forward"]["a_label_s"] == pytest.approx(5.0)
    system = {row["name"]: row for row in found["system"]}
    assert (system["hw.gpu.utilization"]["a_mean"], system["hw.gpu.utilization"]["b_mean"]) == pytest.approx((0.5, 0.9))


def test_of_a_step_that_was_done_twice_the_newest_attempt_counts(client: Client) -> None:
    loss = metric(compare_runs(client, "again", "gpt-a"), "loss")
    assert (loss["step"], loss["a"]) == (9, 109.0)


def test_a_run_without_phases_and_samples_can_be_compared(client: Client) -> None:
    found = compare_runs(client, "again", "gpt-64", ("loss",))
    assert (found["phases"], found["system"], [row["key"] for row in found["metrics"]]) == ([], [], ["loss"])


@pytest.mark.full
def test_lowest_and_highest_are_of_finite_values_also_where_others_are_infinite(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_plotted_runs(database)
        build = RunBuilder(database)
        infinite = "CASE WHEN step % 2 = 0 THEN '-inf'::DOUBLE WHEN step % 3 = 0 THEN 'inf'"
        loss = f"{infinite} WHEN step % 5 = 0 THEN 'nan' ELSE value END"
        build.set_values("metrics", loss, "run_id = 'gpt-a' AND key_name = 'loss'")
        build.set_values("metrics", "'inf'", "run_id = 'gpt-b' AND key_name = 'acc'")
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        found = compare_runs(client, "gpt-a", "gpt-b")
        finite_values = "FROM metrics WHERE run_id = 'gpt-a' AND key = 'loss' AND isfinite(value)"
        [finite] = client.sql(f"SELECT min(value) AS a, max(value) AS b {finite_values}").rows()
    loss, acc = metric(found, "loss"), metric(found, "acc")
    assert (loss["a_min"], loss["a_max"]) == (finite["a"], finite["b"])
    assert (acc["b_min"], acc["b_max"]) == (None, None) and acc["a_min"] is not None
