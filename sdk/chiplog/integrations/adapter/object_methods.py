"""Methods of one object of a framework that go through a function of ours, where the framework has no hook."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

_log = logging.getLogger("chiplog")


class _Wrapped(partial[Any]):
    """A method of one object that goes through a function of ours, and what the object itself had by that name."""

    own: Any


def wrap_method(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Let calls of an object's method go through `around`, which gets the method first. A second time does nothing.

    A version of the framework without the method goes without, with one line.
    """
    method = getattr(owner, name, None)
    if method is None:
        _log.warning("chiplog: %s has no %s() in this version; its phase is left out", type(owner).__name__, name)
    elif not isinstance(method, _Wrapped):
        wrapped = _Wrapped(around, method)
        wrapped.own = vars(owner).get(name)
        setattr(owner, name, wrapped)


def unwrap_method(owner: Any, name: str) -> None:
    """Let calls go to the method itself again. One that others have replaced since stays."""
    wrapped = vars(owner).get(name)
    if not isinstance(wrapped, _Wrapped):
        return
    del vars(owner)[name]
    if wrapped.own is not None:
        vars(owner)[name] = wrapped.own
