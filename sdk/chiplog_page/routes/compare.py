"""Runs beside each other: config, summary, metrics at the same step, time per phase."""

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.client import Client
from chiplog_client.reads.comparison.same_step import read_same_step
from chiplog_client.reads.comparison.side_by_side import read_described, read_phases, read_settings, read_whole
from chiplog_client.reads.parameters import STEP_MAX
from chiplog_client.results.json_texts import json_number
from chiplog_page.server.json_response import JsonResponse, read_json
from chiplog_page.server.parameters import integer, repeated

RUNS_MIN = 2
RUNS_MAX = 10


async def compare(request: Request) -> Response:
    """GET api/compare: config, summary and seconds per phase of 2 to 10 runs, with one value per run in their order.

    run: repeated. `is_same`: all runs have this value. At most 2,000 keys of each kind. `phases`, `phase_medians`:
    seconds per step of the mean and of the median label; `phase_shares`: parts of the step.
    """
    runs = repeated(request.query_params, "run", RUNS_MAX, least=RUNS_MIN)
    source = request.app.state.source
    described = await source.call(lambda client: read_described(client, runs))
    found = {run["run_id"] for run in described}
    missing = [run for run in runs if run not in found]
    if missing:
        raise HTTPException(404, f"there is no run {missing[0]!r:.200}")
    settings, phases = await asyncio.gather(
        source.call(lambda client: read_settings(client, runs)),
        source.call(lambda client: read_phases(client, runs)),
    )
    return JsonResponse({"runs": described, **settings, **phases})


async def compare_metrics(request: Request) -> Response:
    """GET api/compare/metrics: metrics of 2 to 10 runs at the same step, the mean over the labels of each run.

    run: repeated. step: of each metric the last common step until this one counts, without it the last of all. A
    metric that fewer than two runs logged is left out. At most 2,000 metrics.
    """
    query = request.query_params
    runs, step = repeated(query, "run", RUNS_MAX, least=RUNS_MIN), integer(query, "step", STEP_MAX)

    def read(client: Client) -> list[dict[str, Any]]:
        return [
            {**row, "values": [json_number(value) for value in row["values"]]}
            for row in read_same_step(client, runs, step)
        ]

    return await read_json(request, read)


async def compare_whole(request: Request) -> Response:
    """GET api/compare/whole: final and best values of metrics, and means of machines, of 2 to 10 whole runs.

    run: repeated. `final`: the mean of the last values of the labels. `best`: the lowest value of any label, or the
    highest if define_metric(summary="max") says so. Means of machines have a quantity, as of api/runs/RUN/system.
    """
    runs = repeated(request.query_params, "run", RUNS_MAX, least=RUNS_MIN)
    return await read_json(request, lambda client: read_whole(client, runs))


ROUTES = [
    Route("/compare", compare),
    Route("/compare/metrics", compare_metrics),
    Route("/compare/whole", compare_whole),
]
