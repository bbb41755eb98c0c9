"""Ranks of a run beside each other: who is slow, in a sentence and as a heat map, and their phases over time."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.client import Client
from chiplog_client.reads.heat import COLUMNS_MAX, ROWS_MAX, HeatRequest, read_heat
from chiplog_client.reads.run_verdict import read_verdict
from chiplog_client.reads.step_phases import read_step
from chiplog_client.reads.timeline import COLUMNS_MAX as PIXELS_MAX
from chiplog_client.reads.timeline import ROWS_MAX as LANES_MAX
from chiplog_client.reads.timeline import TimelineRequest, read_timeline
from chiplog_page.server.json_response import columns_of, read_json
from chiplog_page.server.parameters import LABELS_MAX, choice, integer, optional_integer, repeated
from chiplog_page.server.shared_answers import shared

_STEP_COLUMNS = ["label", "phase", "may_wait", "seconds", "typical_s", "ts"]


@shared
async def get_verdict(request: Request) -> Response:
    """GET api/runs/RUN/verdict: who failed first, who was slow and who waited, as a sentence in parts with links."""
    run = request.path_params["run"]
    return await read_json(request, lambda client: read_verdict(client, run))


@shared
async def get_heat(request: Request) -> Response:
    """GET api/runs/RUN/heat: the excess of each label over the median of each step, in one phase.

    phase: `step` if it is missing. first, last: steps. rows, columns: of cells, at most 256 and 600. since: only the
    columns from this step on. label: only these rows; may be repeated. A cell has the maximum of its labels and steps,
    beside the median of all labels. The phase `outside` is the time outside of the phases that labels share.
    """
    query = request.query_params

    asked = HeatRequest(
        request.path_params["run"],
        query.get("phase") or None,
        optional_integer(query, "first"),
        optional_integer(query, "last"),
        optional_integer(query, "since"),
        integer(query, "rows", ROWS_MAX, 1, ROWS_MAX),
        integer(query, "columns", COLUMNS_MAX, 10, COLUMNS_MAX),
        tuple(repeated(query, "label", LABELS_MAX)),
    )
    return await read_json(request, lambda client: read_heat(client, asked))


async def get_step(request: Request) -> Response:
    """GET api/runs/RUN/step: the phases of one step, of the labels that worked longest, at most 64.

    step: the step. mark: a label that comes first. label: only these; may be repeated. The medians are those of all
    labels. The phase `outside` has time in no phase. `n_labels` counts the labels with phases at this step.
    """
    run, query = request.path_params["run"], request.query_params
    step, mark = integer(query, "step", 0), query.get("mark", "")
    labels = repeated(query, "label", LABELS_MAX)

    def read(client: Client) -> dict[str, Any]:
        found = read_step(client, run, step, mark=mark, labels=labels)
        return {"step": step, "n_labels": found["n_labels"], **columns_of(found["rows"], _STEP_COLUMNS)}

    return await read_json(request, read)


@shared
async def get_timeline(request: Request) -> Response:
    """GET api/runs/RUN/timeline: the phases of each label over wall time, for a range of steps.

    first, last: steps; without `first` the last 20. columns: pixels of a row, at most 4,000: where a step has less than
    8 of them, a bar adds up several steps. rows: labels, at most 64. skip: labels before the first row. order: `rank`,
    or `slow` for those first that worked longest; if it is missing, `slow` where some labels have no row. mark: a
    label that is among the rows. label: only these; may be repeated.

    Times of phases are derived from their lengths and from when they were recorded: see docs/topics/page.md. `bars` has
    row, step, start and length in seconds since `begun_us`; `pieces` has for each bar phase and seconds in turn, with
    the phase -1 for time in no phase. `slowest` names the label of each bar that worked 5 % longer than the median, or
    was outside of shared phases for so long.
    """
    query = request.query_params
    asked = TimelineRequest(
        request.path_params["run"],
        optional_integer(query, "first"),
        optional_integer(query, "last"),
        integer(query, "columns", 1_000, 100, PIXELS_MAX),
        integer(query, "rows", LANES_MAX, 1, LANES_MAX),
        integer(query, "skip", 0, 0),
        choice(query, "order", ("auto", "rank", "slow")),
        query.get("mark", ""),
        tuple(repeated(query, "label", LABELS_MAX)),
    )
    return await read_json(request, lambda client: read_timeline(client, asked))


ROUTES = [
    Route("/runs/{run}/verdict", get_verdict),
    Route("/runs/{run}/heat", get_heat),
    Route("/runs/{run}/step", get_step),
    Route("/runs/{run}/timeline", get_timeline),
]
