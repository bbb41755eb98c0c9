"""The table of runs: all of them at once, so that a browser sorts and filters without asking again."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog.page.json_response import JsonResponse, columns_of

RUNS_MAX = 20_000  # the newest
KEYS_MAX = 20  # chosen columns of config, and of the summary
NAMES_MAX = 2_000
_COLUMNS = [
    *("run_id", "project", "name", "run_group", "job_type", "tags", "notes", "state", "exit_code", "created_at"),
    *("ended_at", "primary_label", "n_labels", "n_attempts", "n_failed", "n_running"),
]
_RUNS = f"SELECT {', '.join(_COLUMNS)} FROM runs ORDER BY created_at DESC NULLS LAST, run_id DESC LIMIT {RUNS_MAX}"
_PENDING = """
SELECT run_id, CASE WHEN count(pending) = count(*) THEN sum(pending)::BIGINT END AS pending, sum(lost)::BIGINT AS lost
FROM completeness GROUP BY run_id
"""
# Names of columns to choose from: those of most runs first.
_NAMES = f"SELECT key, count(*) AS n FROM {{view}} GROUP BY key ORDER BY n DESC, key LIMIT {NAMES_MAX}"


async def list_runs(request: Request) -> Response:
    """GET api/runs: one row per run, the newest first. config, summary: keys, each of which becomes a column."""
    source = request.app.state.source
    runs = await source.rows(_RUNS)
    names = list(_COLUMNS)
    for view, parameter in (("config", "config"), ("run_summary", "summary")):
        keys = list(dict.fromkeys(request.query_params.getlist(parameter)))
        if len(keys) > KEYS_MAX:
            raise ValueError(f"{len(keys)} {parameter} columns are more than {KEYS_MAX}")
        if not keys:
            continue
        query = f"SELECT run_id, key, value->>'$' AS value FROM {view} WHERE list_contains($keys::VARCHAR[], key)"
        values = {(row["run_id"], row["key"]): row["value"] for row in await source.rows(query, keys=keys)}
        for key in keys:
            names.append(f"{parameter}.{key}")
            for run in runs:
                run[names[-1]] = _number(values.get((run["run_id"], key)))
    counts = {row["run_id"]: row for row in await source.rows(_PENDING)}
    names += ["pending", "lost"]
    for run in runs:
        count = counts.get(run["run_id"])
        run["pending"], run["lost"] = (count["pending"], count["lost"]) if count else (0, 0)
    return JsonResponse(columns_of(runs, names))


async def list_keys(request: Request) -> Response:
    """GET api/keys: names of config and of the summary, for the choice of columns."""
    source = request.app.state.source
    found = {
        name: [row["key"] for row in await source.rows(_NAMES.format(view=view))]
        for name, view in (("config", "config"), ("summary", "run_summary"))
    }
    return JsonResponse(found)


def _number(text: str | None) -> Any:
    """Return a number if a text is one, so that the browser sorts it as such."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


ROUTES = [Route("/runs", list_runs), Route("/keys", list_keys)]
