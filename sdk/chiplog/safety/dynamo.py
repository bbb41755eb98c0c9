"""Keep torch.compile out of chiplog: what is called in a compiled region is called as it is, between two graphs."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_PACKAGES = ("chiplog", "chiplog_schemas")
_excluded: list[bool] = []


def dynamo_disable(function: _F) -> _F:
    """Mark a function as one that dynamo must not look into: what torch.compiler.disable would, without torch."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # any attribute may be set
    function._torchdynamo_disable_msg = "chiplog runs as it is"  # type: ignore[attr-defined]  # likewise
    return function


def exclude_from_dynamo() -> None:
    """Have dynamo step over our files, as soon as it is there: what `untraced` marks calls others of us."""
    if _excluded:
        return
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None or getattr(rules.__spec__, "_initializing", False):
        return
    _excluded.append(True)
    for package in _PACKAGES:
        rules.add(package)
