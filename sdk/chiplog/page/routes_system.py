"""Samples of the machines of a run."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog.page.json_response import JsonResponse
from chiplog.page.parameters import integer
from chiplog.page.system_curves import POINTS_MAX, read_names, read_system_curve
from chiplog.query.client import Client

NAMES_MAX = 20  # in one request


async def get_names(request: Request) -> Response:
    """GET api/runs/RUN/system: names of samples, and marks: throttling and events of GPUs, at most 500."""
    run = request.path_params["run"]
    return JsonResponse(await request.app.state.source.call(lambda client: read_names(client, run)))


async def get_curves(request: Request) -> Response:
    """GET api/runs/RUN/system/curves: samples in buckets of time, a line for each device, or a band above 16.

    name: may be repeated, at most 20 times. first, last: microseconds since 1970; last is exclusive. points: buckets,
    at most 400.
    """
    run, query = request.path_params["run"], request.query_params
    names = list(dict.fromkeys(query.getlist("name")))
    if not 0 < len(names) <= NAMES_MAX:
        raise ValueError(f"{len(names)} names; give 1 to {NAMES_MAX}")
    first, last = integer(query, "first", 0, 0, 1 << 52), integer(query, "last", 1 << 52, 0, 1 << 52)
    if last <= first:
        raise ValueError(f"last={last} is not after first={first}")
    points = integer(query, "points", POINTS_MAX, 10, POINTS_MAX)

    def read(client: Client) -> list[dict[str, Any]]:
        return [read_system_curve(client, run, name, first, last, points) for name in names]

    return JsonResponse(await request.app.state.source.call(read))


ROUTES = [Route("/runs/{run}/system", get_names), Route("/runs/{run}/system/curves", get_curves)]
