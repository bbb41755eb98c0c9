"""MLflow's version, and who calls the store."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest


@pytest.mark.parametrize("version", ["3.5.1", "2.22.0"])
def test_a_version_that_is_too_old_is_one_line(version: str) -> None:
    from chiplog.integrations.mlflow.library import MlflowException, require_version

    with pytest.raises(MlflowException, match=f"MLflow {version} is older than 3.6"):
        require_version(version)
    require_version("3.6.0rc1")


def _called(function: Callable[[], Any], *frames: tuple[str, str]) -> Any:
    """Return what a function returns that functions of these modules call, the last one directly."""
    for module, name in reversed(frames):
        names: dict[str, Any] = {"__name__": module, "inner": function}
        exec(f"def {name}():\n    return inner()", names)
        function = names[name]
    return function()


def test_a_read_of_a_user_differs_from_one_in_the_middle_of_mlflows_calls() -> None:
    from chiplog.integrations.mlflow.library import is_asked_by, is_read_of_user

    client, store = ("mlflow.tracking.client", "get_run"), ("chiplog.integrations.mlflow.store", "get_run")
    assert _called(is_read_of_user, client, store) is True
    assert _called(is_read_of_user, ("mlflow.tracking.fluent", "last_active_run"), client, store) is True
    assert _called(is_read_of_user, ("flask.app", "wsgi"), ("mlflow.server.handlers", "_get_run"), store) is True
    assert _called(is_read_of_user, ("mlflow.models.model", "log_model"), client, store) is False
    start = ("mlflow.tracking.fluent", "start_run")
    assert _called(is_read_of_user, start, client, store) is False
    assert _called(lambda: is_asked_by("start_run")) is False
    log = ("mlflow.tracking.client", "log_artifact")
    assert _called(partial(is_asked_by, "start_run", "log_"), log, client, store) is True
    assert _called(lambda: None, start) is None
