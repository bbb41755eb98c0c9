"""Values of a query's parameters, as they travel and as DuckDB takes them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from chiplog_client.results.result import QueryError
from chiplog_schemas.query import query_messages

Params = Sequence[Any] | Mapping[str, Any] | None


def plain_params(params: Params) -> "list[Any] | dict[str, Any] | None":
    """Turn parameters into plain values: times become text in UTC, numpy and torch scalars become numbers."""
    if params is None:
        return None
    if isinstance(params, Mapping):
        return {str(name): _plain(value, f"${name}") for name, value in params.items()}
    if isinstance(params, str | bytes) or not isinstance(params, Sequence):
        raise QueryError("refused", f"params is {type(params).__name__}; give a list of values or a mapping of names")
    return [_plain(value, f"?{number}") for number, value in enumerate(params, 1)]


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        return value.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if query_messages.is_plain(value):
        return value
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", 0) == 0:
        return _plain(item(), name)
    raise QueryError(
        "refused", f"parameter {name} is {type(value).__name__}; give a number, text, bytes, a time or a list of those"
    )
