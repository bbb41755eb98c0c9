"""Runs beside each other: config, summary, metrics at the same step, time per phase."""

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.reads.comparison.phase_means import read_phase_means
from chiplog_client.reads.comparison.same_step import read_same_step
from chiplog_client.reads.parameters import STEP_MAX
from chiplog_client.results.json_texts import decoded
from chiplog_page.server.json_response import JsonResponse, read_json
from chiplog_page.server.parameters import integer, repeated

RUNS_MIN = 2
RUNS_MAX = 10
KEYS_MAX = 2_000  # of config, and of the summary
_OF_RUNS = "WHERE list_contains($runs::VARCHAR[], run_id)"
_RUNS = f"SELECT run_id, name, state, created_at, ended_at, n_labels, n_failed FROM runs {_OF_RUNS}"
_CONFIG = f"SELECT run_id, key, value FROM config {_OF_RUNS} ORDER BY key"
# Keys of chiplog itself come last.
_SUMMARY = f"SELECT run_id, key, value FROM run_summary {_OF_RUNS} ORDER BY starts_with(key, 'chiplog/'), key"


async def compare(request: Request) -> Response:
    """GET api/compare: config, summary and seconds per phase of 2 to 10 runs, with one value per run in their order.

    run: repeated. `is_same`: all runs have this value. At most 2,000 keys of each kind. `phases`, `phase_medians`:
    seconds per step of the mean and of the median label; `phase_shares`: parts of the step.
    """
    runs = repeated(request.query_params, "run", RUNS_MAX, least=RUNS_MIN)
    source = request.app.state.source
    found = {row["run_id"]: row for row in await source.rows(_RUNS, runs=runs)}
    missing = [run for run in runs if run not in found]
    if missing:
        raise HTTPException(404, f"there is no run {missing[0]!r:.200}")
    config, summary, phases = await asyncio.gather(
        *(source.rows(query, runs=runs) for query in (_CONFIG, _SUMMARY)),
        source.call(lambda client: read_phase_means(client, runs)),
    )
    phases = [{**row, "key": row["phase"]} for row in phases]
    for row in (*config, *summary):
        row["value"] = decoded(row["value"])
    return JsonResponse(
        {
            "runs": [found[run] for run in runs],
            "config": _beside(config, runs, "value"),
            "summary": _beside(summary, runs, "value"),
            "phases": _beside(phases, runs, "mean_s"),
            "phase_medians": _beside(phases, runs, "median_s"),
            "phase_shares": _beside([row for row in phases if row["share"] is not None], runs, "share"),
        }
    )


async def compare_metrics(request: Request) -> Response:
    """GET api/compare/metrics: metrics of 2 to 10 runs at the same step, the mean over the labels of each run.

    run: repeated. step: of each metric the last common step until this one counts, without it the last of all. A
    metric that fewer than two runs logged is left out. At most 2,000 metrics.
    """
    query = request.query_params
    runs, step = repeated(query, "run", RUNS_MAX, least=RUNS_MIN), integer(query, "step", STEP_MAX)
    return await read_json(request, lambda client: read_same_step(client, runs, step))


def _beside(rows: list[dict[str, Any]], runs: list[str], name: str) -> list[dict[str, Any]]:
    """Return one entry per key, with the values of all runs; None for a run without it."""
    values: dict[str, dict[str, Any]] = {}
    for row in rows:
        values.setdefault(row["key"], {})[row["run_id"]] = row[name]
    return [
        {
            "key": key,
            "values": [of_runs.get(run) for run in runs],
            "is_same": len(of_runs) == len(runs) and all(_is_same(of_runs[run], of_runs[runs[0]]) for run in runs),
        }
        for key, of_runs in list(values.items())[:KEYS_MAX]
    ]


def _is_same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)  # in Python True is 1


ROUTES = [Route("/compare", compare), Route("/compare/metrics", compare_metrics)]
