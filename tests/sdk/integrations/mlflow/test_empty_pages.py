"""What MLflow has beside runs and models: empty pages, and MLflow's own refusal of a write."""

from importlib import import_module
from typing import Any

import pytest


@pytest.fixture
def store() -> Any:
    return import_module("chiplog.integrations.mlflow.empty_pages").EmptyPages.__new__(
        import_module("chiplog.integrations.mlflow.empty_pages").EmptyPages
    )


def test_searches_find_nothing_and_lookups_say_that_there_is_none(store: Any) -> None:
    exceptions = import_module("mlflow.exceptions")
    assert store.search_traces(experiment_ids=["0"]) == ([], None)
    datasets = store.search_datasets(["0"])
    assert (list(datasets), datasets.token) == ([], None)
    with pytest.raises(exceptions.MlflowException, match="chiplog keeps no trace info: 'tr-1' does not exist"):
        store.get_trace_info("tr-1")


def test_a_write_is_refused_as_mlflow_does_it(store: Any) -> None:
    exceptions = import_module("mlflow.exceptions")
    with pytest.raises(exceptions.MlflowNotImplementedException, match=r"does not support register_scorer\(\)"):
        store.register_scorer("0", "exact")


def test_what_mlflow_implements_or_each_store_must_stays(store: Any) -> None:
    assert "get_run" not in vars(type(store))
