"""Curves of a run."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog.page.curves import LABELS_MAX, POINTS_MAX, CurveRequest, read_curve
from chiplog.page.json_response import JsonResponse
from chiplog.page.parameters import integer
from chiplog.query.client import Client

KEYS_MAX = 50  # in one request


async def get_curves(request: Request) -> Response:
    """GET api/runs/RUN/curves: values of metrics in buckets of equally many steps.

    key: a metric; may be repeated. points: buckets of a curve, at most 2,000. first, last: bounds of steps. label: only
    these labels; may be repeated. lines: above so many labels the answer is a band over all of them.
    """
    query = request.query_params
    keys = list(dict.fromkeys(query.getlist("key")))
    if not 0 < len(keys) <= KEYS_MAX:
        raise ValueError(f"{len(keys)} keys; give 1 to {KEYS_MAX}")
    shared: dict[str, Any] = {
        "run": request.path_params["run"],
        "points": integer(query, "points", 400, 10, POINTS_MAX),
        "labels": tuple(query.getlist("label"))[:LABELS_MAX],
        "lines_max": integer(query, "lines", 16, 0, LABELS_MAX),
        "first": integer(query, "first", 0) if query.get("first") else None,
        "last": integer(query, "last", 0) if query.get("last") else None,
    }

    def read(client: Client) -> list[dict[str, Any]]:
        return [read_curve(client, CurveRequest(key=key, **shared)) for key in keys]

    return JsonResponse(await request.app.state.source.call(read))


ROUTES = [Route("/runs/{run}/curves", get_curves)]
