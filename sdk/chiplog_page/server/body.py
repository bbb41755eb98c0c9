"""The body of a request."""

from typing import Any

import orjson
from starlette.requests import Request

from chiplog_client.reads.parameters import BadRequestError

BODY_BYTES_MAX = 64 << 10
DEPTH_MAX = 64  # of arrays and objects: deeper ones cannot be written as JSON again, from some depth on


async def json_object(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request. Raises BadRequestError."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise BadRequestError(f"the request has more than {BODY_BYTES_MAX} bytes")
    try:
        value = orjson.loads(bytes(body))
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequestError("the request is not a JSON object")
    if _is_deep(value):
        raise BadRequestError(f"the request nests arrays and objects deeper than {DEPTH_MAX} levels")
    return value


def _is_deep(value: Any) -> bool:
    """Return True if arrays and objects are nested deeper than DEPTH_MAX."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        inner = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [item for items in inner for item in items]
    return bool(level)
