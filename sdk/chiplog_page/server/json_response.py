"""Answers as JSON: NaN and infinities as null, times in ISO 8601 with Z, and errors in one form."""

from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from chiplog_client.client import Client
from chiplog_client.results.result import QueryError

# Of the kinds of QueryError; others are 500.
_STATUSES = {
    "refused": 400,
    "forbidden": 403,
    "sql": 400,
    "timeout": 504,
    "busy": 503,
    "unreachable": 503,
    "stopping": 503,
    "cancelled": 503,
}
INTEGER_MAX = (1 << 53) - 1  # JavaScript's Number.MAX_SAFE_INTEGER: it rounds larger ones
_OPTIONS = orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


class JsonResponse(Response):
    """A response with a value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes of a value."""
        return to_json(content)


def to_json(value: Any) -> bytes:
    """Return a value as JSON. Integers beyond 64 bits become numbers with a fraction, odd keys and zoned times text."""
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS)
    except TypeError:  # such a value: rare, and a copy of all values is slow
        return orjson.dumps(_accepted(value, _wide_number), default=_plain, option=_OPTIONS)


def to_exact_json(value: Any) -> bytes:
    """Return a value as JSON whose integers and decimals keep all digits in JavaScript: as text where it rounds."""
    options = _OPTIONS | orjson.OPT_STRICT_INTEGER  # refuses integers beyond INTEGER_MAX
    try:
        return orjson.dumps(value, default=_exact, option=options)
    except TypeError:
        return orjson.dumps(_accepted(value, _exact_integer), default=_exact, option=options)


async def read_json(request: Request, read: Callable[[Client], Any]) -> Response:
    """Return as JSON what a function reads with a client.

    The text is made in its thread: other pages do not wait for that of a large answer.
    """
    response: Response = await request.app.state.source.call(lambda client: JsonResponse(read(client)))
    return response


def error_response(status: int, kind: str, message: str) -> JsonResponse:
    """Return an error: `{"error": {"kind": …, "message": …}}`."""
    return JsonResponse({"error": {"kind": kind, "message": message}}, status_code=status)


def query_error_response(error: QueryError) -> JsonResponse:
    """Return why a query has no result."""
    return error_response(_STATUSES.get(error.kind, 500), error.kind, error.message)


def columns_of(rows: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Return rows as `{"columns": names, "rows": [[…], …]}`: names are sent once."""
    return {"columns": names, "rows": [[row[name] for name in names] for row in rows]}


def _accepted(value: Any, integer: Callable[[int], Any]) -> Any:
    """Return a copy without what orjson refuses. integer: returns what is sent for an integer."""
    if isinstance(value, dict):
        return {_key(key): _accepted(item, integer) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_accepted(item, integer) for item in value]
    if isinstance(value, time):
        return value.isoformat()
    return integer(value) if isinstance(value, int) else value


def _wide_number(value: int) -> int | float:
    return value if -(1 << 63) <= value < 1 << 64 else float(value)


def _exact_integer(value: int) -> int | str:
    return value if -INTEGER_MAX <= value <= INTEGER_MAX else str(value)


def _key(key: Any) -> Any:
    """Return a key of a MAP as orjson takes it: a number keeps all of its digits."""
    if key is None or isinstance(key, str | bool | float | datetime | date):
        return key
    return bytes(key).hex() if isinstance(key, bytes | bytearray | memoryview) else str(key)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Decimal):
        return float(value)
    return str(value)


def _exact(value: Any) -> Any:
    if isinstance(value, Decimal) and Decimal(repr(float(value))) != value:
        return format(value, "f")
    return _plain(value)
