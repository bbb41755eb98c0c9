"""Saved views: layouts of a run and of the table of runs, and SQL queries."""

import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.runs.saved_views import read_saved_views
from chiplog_page.server.body import json_object
from chiplog_page.server.json_response import JsonResponse

VIEW_BYTES_MAX = 32 << 10


async def list_views(request: Request) -> Response:
    """GET api/views: the saved views.

    prefix: only names that begin with it. The page uses `run/PROJECT/` for layouts of a run, `runs/` for those of the
    table of runs, and `sql/` for queries.
    """
    prefix = request.query_params.get("prefix", "")
    return JsonResponse(await request.app.state.source.call(lambda client: read_saved_views(client, prefix)))


async def save_view(request: Request) -> Response:
    """PUT api/views/NAME: save the JSON object of the body under a name, for all readers of the collector."""
    text = json.dumps(await json_object(request))
    if len(text) > VIEW_BYTES_MAX:
        raise BadRequestError(f"a view of {len(text)} bytes is larger than {VIEW_BYTES_MAX}")
    return await _change(request, text)


async def remove_view(request: Request) -> Response:
    """DELETE api/views/NAME: delete a saved view."""
    return await _change(request, None)


async def _change(request: Request, text: str | None) -> Response:
    name = request.path_params["name"]
    return JsonResponse(await request.app.state.source.call(lambda client: client.save_view(name, text)))


ROUTES = [
    Route("/views", list_views),
    Route("/views/{name:path}", save_view, methods=["PUT"]),
    Route("/views/{name:path}", remove_view, methods=["DELETE"]),
]
