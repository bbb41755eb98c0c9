"""Keep torch.compile out of chiplog: calls in a compiled region run uncompiled, between two graphs."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_PACKAGES = ("chiplog", "chiplog_schemas")
_excluded: list[bool] = []


def dynamo_disable(function: _F) -> _F:
    """Mark a function that dynamo must not trace, as torch.compiler.disable does, without importing torch."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # any attribute may be set
    function._torchdynamo_disable_msg = "chiplog runs as it is"  # type: ignore[attr-defined]  # likewise
    return function


def exclude_from_dynamo() -> None:
    """Exclude chiplog's files from dynamo once it is imported: marked functions call other functions of chiplog."""
    if _excluded:
        return
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None or getattr(rules.__spec__, "_initializing", False):
        return
    _excluded.append(True)
    for package in _PACKAGES:
        rules.add(package)
