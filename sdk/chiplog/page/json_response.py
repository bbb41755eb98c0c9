"""Answers as JSON: NaN and infinities as null, times in ISO 8601 with Z, and errors in one form."""

from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from chiplog.query.client import Client
from chiplog.query.result import QueryError

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
        return orjson.dumps(_accepted(value), default=_plain, option=_OPTIONS)


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


def _accepted(value: Any) -> Any:
    """Return a copy without what orjson refuses."""
    if isinstance(value, dict):
        return {_key(key): _accepted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_accepted(item) for item in value]
    if isinstance(value, time):
        return value.isoformat()
    return float(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64 else value


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
