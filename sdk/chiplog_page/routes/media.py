"""Histograms, texts and media of a run."""

import re

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.client import Client
from chiplog_client.reads.media.histograms import COLUMNS_MAX, ROWS_MAX, HistogramsRequest, read_histograms
from chiplog_client.reads.media.logged_media import describe_contents, read_media
from chiplog_client.reads.media.logged_tables import ROWS_MAX as TABLE_ROWS_MAX
from chiplog_client.reads.media.logged_tables import TABLE_BYTES_MAX, read_table
from chiplog_client.reads.media.run_contents import read_logged_keys
from chiplog_client.reads.media.texts import read_texts
from chiplog_client.reads.parameters import STEP_MAX, BadRequestError
from chiplog_client.results.result import QueryError
from chiplog_page.routes.contents import logged_content
from chiplog_page.server.json_response import read_json, to_exact_json
from chiplog_page.server.parameters import LABELS_MAX, choice, integer, number, optional_integer, repeated

_MEDIA_CELL = re.compile(r"sha256:[0-9a-f]{64}$")


async def get_media(request: Request) -> Response:
    """GET api/runs/RUN/media: keys of histograms, texts and media, their number and steps; media also with their kind.

    Masks of an image, and media in a table, belong to its key.
    """
    run = request.path_params["run"]
    return await read_json(request, lambda client: read_logged_keys(client, run))


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


async def get_logged(request: Request) -> Response:
    """GET api/runs/RUN/logged: the media of a key at one step.

    key: the name. kind: as in the view `media`. step: the last step with such media up to this one; the newest if
    missing. label: only these; may be repeated. `type` is how a browser shows a content, null for a download. Of a
    list each value has its place as `item`. Boxes are in the metadata, masks beside them. At most 200 media.
    """
    query, run = request.query_params, request.path_params["run"]
    key, kind, step = _key_of(query.get("key", "")), query.get("kind", ""), integer(query, "step", STEP_MAX)
    labels = repeated(query, "label", LABELS_MAX)
    return await read_json(request, lambda client: read_media(client, run, key, kind, step, labels))


async def get_table(request: Request) -> Response:
    """GET api/runs/RUN/tables/SHA256: rows of a logged table, at most 1,000.

    sort: the number of a column. order: `up` or `down`. search: only rows with this text in a cell. limit: rows. A
    table above 32 MiB is refused. `media` describes the media that cells refer to, by digest.
    """
    query, run, sha256 = request.query_params, request.path_params["run"], request.path_params["sha256"]
    sort, is_down = optional_integer(query, "sort", 0), choice(query, "order", ("up", "down")) == "down"
    search, limit = query.get("search", ""), integer(query, "limit", TABLE_ROWS_MAX, 1, TABLE_ROWS_MAX)

    def read(client: Client) -> Response:
        about = describe_contents(client, run, [sha256]).get(sha256)
        if about is None or about["kind"] != "table":
            raise HTTPException(404, f"run {run!r:.200} logged no table {sha256!r:.80}")
        if about["bytes"] > TABLE_BYTES_MAX:
            raise BadRequestError(f"the table has {about['bytes']} bytes, the limit is {TABLE_BYTES_MAX}; download it")
        table = read_table(client.read_file(sha256), sort, is_down=is_down, search=search, limit=limit)
        cells = {cell[7:] for row in table["rows"] for cell in row if isinstance(cell, str) and _MEDIA_CELL.match(cell)}
        media = describe_contents(client, run, sorted(cells))
        return Response(to_exact_json({**table, "media": media}), media_type="application/json")

    response: Response = await request.app.state.source.call(read)
    return response


async def get_content(request: Request) -> Response:
    """GET api/runs/RUN/contents/SHA256: a content that the run logged, such as an image.

    Its type follows from kind and format; what browsers do not show is a download. Ranges of bytes are answered with
    at most 4 MiB. HTML has neither scripts nor network.
    """
    run, sha256, source = request.path_params["run"], request.path_params["sha256"], request.app.state.source
    about = (await source.call(lambda client: describe_contents(client, run, [sha256]))).get(sha256)
    if about is None:
        raise HTTPException(404, f"run {run!r:.200} logged no content {sha256!r:.80}")
    wanted = request.headers.get("range", "")
    try:
        return await logged_content(
            source, sha256, about["bytes"], kind=about["kind"], form=about["format"], wanted=wanted
        )
    except QueryError as error:
        if error.kind != "refused":
            raise
        raise HTTPException(404, f"content {sha256} has not arrived at the collector: {error}") from None


def _key_of(text: str) -> str:
    if not text:
        raise BadRequestError("key is missing; give the name of what was logged")
    return text


ROUTES = [
    Route("/runs/{run}/media", get_media),
    Route("/runs/{run}/histograms", get_histograms),
    Route("/runs/{run}/texts", get_texts),
    Route("/runs/{run}/logged", get_logged),
    Route("/runs/{run}/tables/{sha256}", get_table),
    Route("/runs/{run}/contents/{sha256}", get_content),
]
