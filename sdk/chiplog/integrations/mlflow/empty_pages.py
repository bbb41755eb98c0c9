"""What MLflow's tracking store has beside runs and models: traces, datasets of evaluations, scorers, gateways.

chiplog keeps none of these. MLflow's page asks for them, so a search has an empty page and a lookup finds nothing. A
write raises MLflow's own error of a store that does not support it.
"""

import inspect
from collections.abc import Callable
from typing import Any

from mlflow.exceptions import MlflowException, MlflowNotImplementedException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking.abstract_store import AbstractStore

_SEARCHES = ("search_", "list_", "find_", "batch_get_", "query_", "get_online_scoring_", "get_active_")
_PAIRS = frozenset(("search_traces",))  # a list and the token of the next page, not a PagedList
_RAISED = frozenset(("NotImplementedError", "MlflowNotImplementedException"))


def _empty(name: str) -> Callable[..., Any]:
    def search(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ([], None) if name in _PAIRS else PagedList([], None)

    return search


def _unknown(name: str) -> Callable[..., Any]:
    what = name.removeprefix("get_").replace("_", " ")

    def find(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = ", ".join(repr(value)[:80] for value in (*args, *kwargs.values()))
        raise MlflowException(f"chiplog keeps no {what}: {named} does not exist", RESOURCE_DOES_NOT_EXIST)

    return find


def _unsupported(name: str) -> Callable[..., Any]:
    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        shown = name.lstrip("_")
        raise MlflowNotImplementedException(f"chiplog does not support {shown}(); it keeps runs, models and artifacts")

    return write


def _method_of(name: str) -> Callable[..., Any]:
    if name.startswith(_SEARCHES):
        method = _empty(name)
    else:
        method = _unknown(name) if name.startswith("get_") else _unsupported(name)
    method.__name__ = name
    return method


def _unimplemented() -> list[str]:
    """Return the methods that the installed MLflow leaves to stores, other than those of each store."""
    found = {}
    for cls in reversed(AbstractStore.__mro__):
        for name, method in vars(cls).items():
            if inspect.isfunction(method):
                found[name] = not _RAISED.isdisjoint(inspect.unwrap(method).__code__.co_names)
    return [name for name, is_unimplemented in found.items() if is_unimplemented]


class EmptyPages(AbstractStore):  # type: ignore[misc]  # MLflow's classes have no types here
    """A store that has nothing of these. A store of runs and models has this class among its bases."""


for _name in _unimplemented():
    setattr(EmptyPages, _name, _method_of(_name))
