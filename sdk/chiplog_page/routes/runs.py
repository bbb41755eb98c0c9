"""The table of runs: all of them at once, so that a browser sorts and filters without asking again."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.client import Client
from chiplog_client.reads.runs.known_names import read_known_names
from chiplog_client.reads.runs.run_sparklines import read_sparklines
from chiplog_page.server.json_response import JsonResponse, read_json
from chiplog_page.server.parameters import integer, repeated

KEYS_MAX = 20  # chosen columns of config, and of the summary
SPARKLINES_MAX = 100  # runs in one request: as many rows as a screen shows
POINTS_MAX = 200


async def list_runs(request: Request) -> Response:
    """GET api/runs: one row per run, the newest first.

    config, summary: keys, each of which becomes a column. since: the `version` of an earlier answer; then only runs
    that have changed, and the IDs of those that were deleted. With a store, `collectors` of a row has those of a run of
    which another one has a part, and `seen` up to when the rows of each are known.
    """
    query = request.query_params
    config, summary = (repeated(query, name, KEYS_MAX) for name in ("config", "summary"))
    table = request.app.state.run_tables.table(config, summary)
    return JsonResponse(await table.read(query.get("since", "")))


async def list_keys(request: Request) -> Response:
    """GET api/keys: names of config, of the summary and of metrics (`curve`), for the choice of columns."""
    return await read_json(request, read_known_names)


async def get_sparklines(request: Request) -> Response:
    """GET api/sparklines: a metric of some runs in a few points each, the mean over their labels.

    key: the metric. run: repeated, at most 100. points: parts of a run's steps, at most 200, 40 if missing. The answer
    has a list for each run that logged it; null for a part without a value, the text "nan" for one without a number.
    """
    query = request.query_params
    [key], runs = repeated(query, "key", 1, least=1), repeated(query, "run", SPARKLINES_MAX, least=1)
    points = integer(query, "points", 40, 2, POINTS_MAX)

    def read(client: Client) -> dict[str, Any]:
        found = read_sparklines(client, key, runs, points)
        return {run: ["nan" if value != value else value for value in values] for run, values in found.items()}

    return await read_json(request, read)


ROUTES = [Route("/runs", list_runs), Route("/keys", list_keys), Route("/sparklines", get_sparklines)]
