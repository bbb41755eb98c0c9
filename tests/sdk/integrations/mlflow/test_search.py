"""Searches: stages, pages and bounds; filters and orders are MLflow's own."""

from types import SimpleNamespace

import pytest


def _run(name: str, stage: str = "active") -> SimpleNamespace:
    info = SimpleNamespace(lifecycle_stage=stage, start_time=1, run_id=name)
    return SimpleNamespace(info=info)


def test_pages_follow_each_other_and_deleted_runs_are_left_out() -> None:
    from chiplog.integrations.mlflow.search import page_of_runs

    runs = [_run("a"), _run("b", "deleted"), _run("c"), _run("d")]
    page, token = page_of_runs(runs, None, 1, 2, None, None)  # type: ignore[arg-type]
    assert [run.info.run_id for run in page] == ["a", "c"]
    page, token = page_of_runs(runs, None, 1, 2, None, token)  # type: ignore[arg-type]
    assert ([run.info.run_id for run in page], token) == (["d"], None)


@pytest.mark.parametrize("max_results", [0, 50_001])
def test_a_number_of_results_beyond_mlflows_bounds_is_its_error(max_results: int) -> None:
    from mlflow.exceptions import MlflowException

    from chiplog.integrations.mlflow.search import page_of_experiments, page_of_runs

    for page_of in (page_of_runs, page_of_experiments):
        with pytest.raises(MlflowException, match=f"max_results={max_results} is not within 1 and 50000"):
            page_of([], None, 1, max_results, None, None)
