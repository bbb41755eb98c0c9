"""Metrics in memory: MLflow's order, its latest value, and what was logged before."""

from math import nan
from typing import Any

import pytest

from tests.support.threads import run_side_by_side


@pytest.fixture
def module() -> Any:
    from chiplog.integrations.mlflow import metrics

    return metrics


def test_history_is_by_time_step_and_value_and_the_latest_is_of_the_largest_step(module: Any) -> None:
    logged = module.LoggedMetrics()
    for step, time_ms, value in ((3, 20, 0.3), (1, 30, 0.1), (3, 20, 0.2), (0, 10, nan)):
        logged.add("loss", step, time_ms, value)
    history = [(point.timestamp, point.step, point.value) for point in logged.history("loss")]
    assert history[1:] == [(20, 3, 0.2), (20, 3, 0.3), (30, 1, 0.1)]
    assert [(point.step, point.value) for point in logged.latest()] == [(3, 0.3)]
    assert ([point.key for point in logged.latest()], logged.history("other")) == (["loss"], [])


def test_a_value_is_known_by_step_time_and_value_whatever_the_order_of_times(module: Any) -> None:
    logged = module.LoggedMetrics()
    for time_ms in (10, 10, 20):
        assert logged.add("a", 0, time_ms, float(time_ms))
    logged.add("a", 1, 20, nan)
    logged.add("a", 5, 1, 1.0)
    for known in ((0, 10, 10.0), (1, 20, nan), (5, 1, 1.0), (0, 20, 20.0)):
        assert not logged.add("a", *known, is_resent=True)
    for other in ((1, 10, 10.0), (0, 30, 1.0), (5, 2, 1.0)):
        assert logged.add("a", *other, is_resent=True)
        assert not logged.add("a", *other, is_resent=True)
    assert logged.add("b", 0, 10, 10.0, is_resent=True)
    assert len(logged.history("a")) == 8


def test_threads_that_log_one_metric_keep_its_points_whole(module: Any) -> None:
    logged = module.LoggedMetrics()

    def add(first: int) -> None:
        for n in range(first, first + 20_000):
            logged.add("a", n, 2 * n, 3.0 * n)

    run_side_by_side(add, range(0, 80_000, 20_000), switches_often=True)
    found = sorted((point.step, point.timestamp, point.value) for point in logged.history("a"))
    assert found == [(n, 2 * n, 3.0 * n) for n in range(80_000)]


def test_the_oldest_of_the_longest_series_go_first(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POINTS_MAX", 10)
    logged = module.LoggedMetrics()
    logged.add("rare", 0, 0, 1.0)
    for step in range(100):
        logged.add("often", step, step, 1.0)
    assert logged.n_points <= 10
    assert len(logged.history("rare")) == 1 and len(logged.history("often")) <= 10
    assert logged.latest()[1].step == 99
