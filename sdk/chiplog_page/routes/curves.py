"""Curves of a run."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.reads.curves import ANSWER_MAX, LINES_MAX, POINTS_MAX, WIDTH_MAX, CurvesRequest, read_curves
from chiplog_client.reads.parameters import BadRequestError
from chiplog_page.server.json_response import read_json
from chiplog_page.server.parameters import LABELS_MAX, integer, optional_integer, repeated
from chiplog_page.server.shared_answers import shared

KEYS_MAX = 50  # in one request


@shared
async def get_curves(request: Request) -> Response:
    """GET api/runs/RUN/curves: values of metrics, or buckets of equally many steps.

    Values are as they were logged where each label has fewer than 2,000 of them in the chosen steps; `width` is then 1.
    key: a metric; may be repeated. points: buckets of a curve, at most 2,000, 400 if missing. first, last: bounds of
    steps. width: steps in a bucket at least. label: only these labels; may be repeated. lines: above so many labels the
    answer is a band over all of them, 16 if missing. x: a metric whose mean in each bucket is added as `x`. defined=1:
    that is the `step_metric` of each key. Keys, lines and points are at most 400,000 buckets together; of more values
    than that some curves have buckets. `last` is the exact last value of a line, with its step. A metric whose values
    all have one step (`is_one_step`) has its values in the order of `ts`, or buckets of `width_s` seconds.
    """
    query = request.query_params
    wanted = CurvesRequest(
        run=request.path_params["run"],
        keys=tuple(repeated(query, "key", KEYS_MAX, least=1)),
        points=integer(query, "points", 400, 10, POINTS_MAX),
        first=optional_integer(query, "first"),
        last=optional_integer(query, "last"),
        width=integer(query, "width", 1, 1, WIDTH_MAX),
        labels=tuple(repeated(query, "label", LABELS_MAX)),
        lines_max=integer(query, "lines", 16, 0, LINES_MAX),
        x=query.get("x", ""),
        is_x_defined=query.get("defined") == "1",
    )
    n_lines = max(min(wanted.lines_max, len(wanted.labels) or wanted.lines_max), 1)
    n_buckets = len(wanted.keys) * n_lines * wanted.points
    if n_buckets > ANSWER_MAX:
        raise BadRequestError(
            f"{len(wanted.keys)} keys with {n_lines} lines of {wanted.points} points are {n_buckets} buckets, "
            f"more than {ANSWER_MAX}; give fewer keys, lines or points"
        )
    return await read_json(request, lambda client: read_curves(client, wanted))


ROUTES = [Route("/runs/{run}/curves", get_curves)]
