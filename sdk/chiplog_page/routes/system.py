"""Samples of the machines of a run."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.reads.parameters import STEP_MAX, BadRequestError
from chiplog_client.reads.system.system_curves import (
    LINES_MAX,
    POINTS_MAX,
    SystemRequest,
    read_names,
    read_system_curves,
)
from chiplog_page.server.json_response import read_json
from chiplog_page.server.parameters import LABELS_MAX, choice, integer, optional_integer, repeated
from chiplog_page.server.shared_answers import shared

NAMES_MAX = 20  # in one request
NODES_MAX = 256  # in one request
WIDTH_MAX = 1 << 40


@shared
async def get_names(request: Request) -> Response:
    """GET api/runs/RUN/system: names of samples, labels with their nodes and GPUs, the span of steps, and marks.

    A name has a title in plain words, the quantity that its values count, and `flat`, its value if that never changes.
    Marks are events of GPUs and where throttling begins, at most 500, each with the step of its node. Of more the
    newest events are kept, then the newest throttling. `n_marks` counts all of them. As in `throttle_cost`, a GPU's
    counters of throttled time count, and `hw.gpu.throttle.reasons` for reasons without a counter.
    """
    run = request.path_params["run"]
    return await read_json(request, lambda client: read_names(client, run))


@shared
async def get_curves(request: Request) -> Response:
    """GET api/runs/RUN/system/curves: samples in buckets, a line for each device, or a band.

    name: may be repeated, at most 20 times. x: `time` (the default) or `step`: the last step that the node's primary,
    else its lowest rank, had logged before the sample. first, last: microseconds since 1970, last is exclusive; or
    steps, last is inclusive; without them all of the samples. points: buckets, at most 400. node, label: only these
    nodes and labels, a label with its host; may be repeated. lines: above so many devices the answer is a band, 16 if
    missing. width: seconds or steps of a bucket at least.
    """
    run, query = request.path_params["run"], request.query_params
    names = tuple(repeated(query, "name", NAMES_MAX, least=1))
    nodes, labels = tuple(repeated(query, "node", NODES_MAX)), tuple(repeated(query, "label", LABELS_MAX))
    is_by_step = choice(query, "x", ("time", "step")) == "step"
    least, most = (-STEP_MAX, STEP_MAX) if is_by_step else (0, 1 << 52)
    first, last = optional_integer(query, "first", least, most), optional_integer(query, "last", least, most)
    if first is not None and last is not None and last - first < (0 if is_by_step else 1):
        raise BadRequestError(f"last={last} is not after first={first}")
    points = integer(query, "points", POINTS_MAX, 10, POINTS_MAX)
    lines = integer(query, "lines", LINES_MAX, 0, LINES_MAX)
    width = integer(query, "width", 1, 1, WIDTH_MAX)

    wanted = SystemRequest(run, names, first, last, points, is_by_step, nodes, labels, lines, width)
    return await read_json(request, lambda client: read_system_curves(client, wanted))


ROUTES = [Route("/runs/{run}/system", get_names), Route("/runs/{run}/system/curves", get_curves)]
