"""SQL."""

import itertools
from collections.abc import Iterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.client import Client
from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.runs.known_names import read_view_columns
from chiplog_client.result_stream import ResultStream
from chiplog_page.server.body import json_object
from chiplog_page.server.json_response import read_json, to_exact_json

ROWS_MAX = 10_000
TEXT_BYTES_MAX = 32 << 20  # of rows: a browser draws a table of that


async def run_sql(request: Request) -> Response:
    """POST api/sql: one SELECT, as `{"query": …}`. At most 10,000 rows are returned, and at most 32 MiB.

    `n_rows` counts all rows. An integer beyond ±(2^53 - 1), and a decimal with more digits than a double has, is text:
    JavaScript would round it.
    """
    body = await json_object(request)
    query = body.get("query")
    if not isinstance(query, str) or not query.strip():
        raise BadRequestError("query is missing; give one SELECT")

    def ask(client: Client) -> dict[str, Any]:
        with client.stream(query) as stream:
            rows = list(_first(stream))
            return {"columns": stream.columns, "rows": rows, "n_rows": stream.n_rows}

    return await read_json(request, ask)


def _first(stream: ResultStream) -> Iterator[orjson.Fragment]:
    """Yield the first rows as JSON, up to the limits."""
    n_bytes = 0
    for row in itertools.islice(stream.tuples(), ROWS_MAX):
        text = to_exact_json(row)
        n_bytes += len(text)
        if n_bytes > TEXT_BYTES_MAX:
            return
        yield orjson.Fragment(text)


async def list_words(request: Request) -> Response:
    """GET api/words: views and their columns, for completion."""
    return await read_json(request, read_view_columns)


ROUTES = [
    Route("/sql", run_sql, methods=["POST"]),
    Route("/words", list_words),
]
