"""Histograms and texts of a run."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog.page.histograms import COLUMNS_MAX, ROWS_MAX, HistogramsRequest, read_histograms
from chiplog.page.json_response import read_json
from chiplog.page.parameters import LABELS_MAX, STEP_MAX, BadRequestError, integer, number, optional_integer, repeated
from chiplog.page.texts import read_texts
from chiplog.query.client import Client

_KINDS = ("histograms", "texts")
_KEYS = """
SELECT key, count(*) AS n, count(DISTINCT label) AS n_labels, min(step) AS first_step, max(step) AS last_step
FROM {kind} WHERE run_id = $run GROUP BY key ORDER BY key
"""


async def get_media(request: Request) -> Response:
    """GET api/runs/RUN/media: keys of histograms and of texts, their number and steps."""
    named = {"run": request.path_params["run"]}

    def read(client: Client) -> dict[str, Any]:
        return {kind: client.sql(_KEYS.format(kind=kind), named).rows() for kind in _KINDS}

    return await read_json(request, read)


async def get_histograms(request: Request) -> Response:
    """GET api/runs/RUN/histograms: histograms of a key as counts in rows of values and columns of steps.

    key: the name. label: only these, else all; may be repeated: several are summed. first, last: bounds of steps. low,
    high: bounds of values. rows: at most 256. columns: at most 600. A column of several steps has the largest count of
    each row.
    """
    query = request.query_params
    low, high = number(query, "low"), number(query, "high")
    if low is not None and high is not None and not low < high:
        raise BadRequestError(f"high={high} is not above low={low}")
    wanted = HistogramsRequest(
        run=request.path_params["run"],
        key=_key_of(query.get("key", "")),
        labels=tuple(repeated(query, "label", LABELS_MAX)),
        first=optional_integer(query, "first"),
        last=optional_integer(query, "last"),
        low=low,
        high=high,
        rows=integer(query, "rows", 100, 1, ROWS_MAX),
        columns=integer(query, "columns", 300, 2, COLUMNS_MAX),
    )
    return await read_json(request, lambda client: read_histograms(client, wanted))


async def get_texts(request: Request) -> Response:
    """GET api/runs/RUN/texts: the texts of a key at one step, or those with some words at any step.

    key: the name. step: the last step with texts up to this one; the newest if missing. label: only these; may be
    repeated. Texts of a single label are whole, those of several are cut after 4,000 characters. search: only texts
    that contain it, the newest first. At most 100 texts.
    """
    query, run = request.query_params, request.path_params["run"]
    key, step = _key_of(query.get("key", "")), integer(query, "step", STEP_MAX)
    labels, search = repeated(query, "label", LABELS_MAX), query.get("search", "")
    return await read_json(request, lambda client: read_texts(client, run, key, step, labels, search))


def _key_of(text: str) -> str:
    if not text:
        raise BadRequestError("key is missing; give the name of what was logged")
    return text


ROUTES = [
    Route("/runs/{run}/media", get_media),
    Route("/runs/{run}/histograms", get_histograms),
    Route("/runs/{run}/texts", get_texts),
]
