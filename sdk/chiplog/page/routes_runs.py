"""The table of runs: all of them at once, so that a browser sorts and filters without asking again."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog.page.json_response import JsonResponse
from chiplog.page.parameters import repeated

KEYS_MAX = 20  # chosen columns of config, and of the summary
NAMES_MAX = 2_000
# Names of columns to choose from: those of most runs first.
_NAMES = f"SELECT key, count(*) AS n FROM {{view}} GROUP BY key ORDER BY n DESC, key LIMIT {NAMES_MAX}"


async def list_runs(request: Request) -> Response:
    """GET api/runs: one row per run, the newest first.

    config, summary: keys, each of which becomes a column. since: the `version` of an earlier answer; then only runs
    that have changed, and the IDs of those that were deleted.
    """
    query = request.query_params
    config, summary = (repeated(query, name, KEYS_MAX) for name in ("config", "summary"))
    table = request.app.state.run_tables.table(config, summary)
    return JsonResponse(await table.read(query.get("since", "")))


async def list_keys(request: Request) -> Response:
    """GET api/keys: names of config and of the summary, for the choice of columns."""
    source = request.app.state.source
    found = {
        name: [row["key"] for row in await source.rows(_NAMES.format(view=view))]
        for name, view in (("config", "config"), ("summary", "run_summary"))
    }
    return JsonResponse(found)


ROUTES = [Route("/runs", list_runs), Route("/keys", list_keys)]
