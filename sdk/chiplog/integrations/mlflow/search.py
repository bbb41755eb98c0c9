"""Searches of runs and experiments, by MLflow's own parser, filter, order and pages."""

from collections.abc import Sequence

from mlflow.entities import Experiment, LifecycleStage, Run
from mlflow.store.tracking import SEARCH_MAX_RESULTS_THRESHOLD
from mlflow.utils.search_utils import SearchExperimentsUtils, SearchUtils

from chiplog.integrations.mlflow.library import invalid


def page_of_runs(
    runs: Sequence[Run],
    filter_string: str | None,
    view_type: int,
    max_results: int,
    order_by: Sequence[str] | None,
    page_token: str | None,
) -> tuple[list[Run], str | None]:
    """Return a page of the runs that match, and the token of the next one. Raises MlflowException."""
    _check(max_results)
    stages = set(LifecycleStage.view_type_to_stages(view_type))
    shown = [run for run in runs if run.info.lifecycle_stage in stages]
    found = SearchUtils.sort(SearchUtils.filter(shown, filter_string), list(order_by or ()))
    page, token = SearchUtils.paginate(found, page_token, max_results)
    return page, token


def page_of_experiments(
    experiments: Sequence[Experiment],
    filter_string: str | None,
    view_type: int,
    max_results: int,
    order_by: Sequence[str] | None,
    page_token: str | None,
) -> tuple[list[Experiment], str | None]:
    """Return a page of the experiments that match, and the token of the next one. Raises MlflowException."""
    _check(max_results)
    stages = set(LifecycleStage.view_type_to_stages(view_type))
    shown = [experiment for experiment in experiments if experiment.lifecycle_stage in stages]
    filtered = SearchExperimentsUtils.filter(shown, filter_string)
    found = SearchExperimentsUtils.sort(filtered, list(order_by or ("creation_time DESC", "experiment_id ASC")))
    page, token = SearchExperimentsUtils.paginate(found, page_token, max_results)
    return page, token


def _check(max_results: int) -> None:
    if max_results is None or not 1 <= max_results <= SEARCH_MAX_RESULTS_THRESHOLD:
        raise invalid(f"max_results={max_results} is not within 1 and {SEARCH_MAX_RESULTS_THRESHOLD}")
