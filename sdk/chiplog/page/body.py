"""The body of a request."""

from typing import Any

import orjson
from starlette.requests import Request

from chiplog.page.parameters import BadRequestError

BODY_BYTES_MAX = 64 << 10


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
    return value
