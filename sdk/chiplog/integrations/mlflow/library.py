"""MLflow itself: which versions can load chiplog, its errors, and who asks."""

import logging
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from mlflow import __version__
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from chiplog_schemas.once import OnceLogger

_OLDEST = (3, 6)
_READS = frozenset(
    ("get_run", "last_active_run", "get_metric_history", "get_parent_run", "get_logged_model")
)  # of users; elsewhere MLflow itself asks
_log = logging.getLogger("chiplog")
_Method = TypeVar("_Method", bound=Callable[..., Any])
_once = OnceLogger(_log.log, 1_000)


def require_version(version: str = __version__) -> None:
    """Raise MlflowException if this MLflow is too old."""
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if number < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise invalid(f"MLflow {version} is older than {oldest}, which chiplog:// needs; pip install -U mlflow")


def invalid(message: str) -> MlflowException:
    """Return MLflow's error of a wrong value."""
    return MlflowException(message, INVALID_PARAMETER_VALUE)


def warn(message: str) -> None:
    """Log one line, once."""
    _once.log(message, logging.WARNING, "chiplog: %s", message)


def lenient(method: _Method) -> _Method:
    """Make a method of a store write one line in place of raising, unless the address has ?strict=1."""

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        try:
            return method(self, *given, **named)
        except Exception as error:
            self._warn(method.__name__, error)
            return None

    return call  # type: ignore[return-value]  # of the same arguments


def is_read_of_user() -> bool:
    """Return True if code outside of MLflow asked for a run or a history; False if MLflow does, amid another call.

    `start_run` and `log_artifact` ask for the run, `log_model` for its metrics: these must not wait for a collector.
    """
    frame: Any = sys._getframe(1)
    name = ""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("mlflow."):
            name = frame.f_code.co_name
            if module.startswith("mlflow.server."):
                return True
        elif not module.startswith("chiplog."):
            break
        frame = frame.f_back
    return name in _READS


def is_asked_by(*beginnings: str) -> bool:
    """Return True if a function of MLflow whose name begins so asks: `start_run` and `log_…` wait for nothing."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("mlflow.", "chiplog.")):
        if frame.f_code.co_name.startswith(beginnings):
            return True
        frame = frame.f_back
    return False
