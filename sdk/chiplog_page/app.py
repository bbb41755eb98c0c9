"""The application: the files of the page, and its HTTP API. docs/reference/page-api.md describes the API."""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route

from chiplog_client.client import NoDataError
from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.runs.known_names import count_runs
from chiplog_client.results.result import QueryError
from chiplog_page.routes import (
    compare,
    curves,
    media,
    ranks,
    run,
    runs,
    sql,
    system,
    views,
)
from chiplog_page.routes import (
    live as live_routes,
)
from chiplog_page.server.disconnect import CancelOnDisconnect
from chiplog_page.server.json_response import JsonResponse, error_response, query_error_response
from chiplog_page.server.run_table import RunTables
from chiplog_page.server.shared_answers import SharedAnswers
from chiplog_page.server.source import Source
from chiplog_page.server.static_files import STATIC, CompressedFiles
from chiplog_schemas._version import __version__
from chiplog_schemas.query.query_messages import one_line

GZIP_BYTES_MIN = 1_000
GZIP_LEVEL = 4  # curves are 2 % larger than at level 9, and need a quarter of the time


def build_app(source: Source) -> Starlette:
    """Return the application. It closes `source` at its end."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.source = source
        app.state.live = live = live_routes.Live(source)
        app.state.shared_answers = SharedAnswers(lambda: live.position)
        app.state.run_tables = RunTables(source)
        yield
        app.state.live.close()
        await source.close()

    api = [
        Route("/info", info),
        *runs.ROUTES,
        *run.ROUTES,
        *ranks.ROUTES,
        *system.ROUTES,
        *media.ROUTES,
        *curves.ROUTES,
        *compare.ROUTES,
        *sql.ROUTES,
        *views.ROUTES,
        *live_routes.ROUTES,
    ]
    return Starlette(
        routes=[Route("/", index), Mount("/api", routes=api), Mount("/static", CompressedFiles())],
        middleware=[
            Middleware(CancelOnDisconnect),
            Middleware(GZipMiddleware, minimum_size=GZIP_BYTES_MIN, compresslevel=GZIP_LEVEL),
        ],
        exception_handlers={
            QueryError: _on_query_error,
            NoDataError: _on_no_data,
            HTTPException: _on_http_error,
            BadRequestError: _on_bad_request,
            Exception: _on_internal_error,
        },
        lifespan=lifespan,
    )


async def index(request: Request) -> Response:
    """The one document of the page. Its state is in the fragment of the address."""
    return FileResponse(os.path.join(STATIC, "index.html"), headers={"cache-control": "no-cache"})


async def info(request: Request) -> Response:
    """GET api/info: the version of chiplog, and how many runs there are."""
    n_runs = await request.app.state.source.call(count_runs)
    return JsonResponse({"version": __version__, "n_runs": n_runs})


async def _on_query_error(request: Request, error: Any) -> Response:
    if error.kind == "sql" and not request.url.path.endswith("/api/sql"):  # the page's own query, which is correct
        other = "a query of the page failed; if the views of the database are of another version of chiplog, start a"
        return error_response(503, "sql", f"{other} collector of this version to renew them: {error.message}")
    return query_error_response(error)


async def _on_no_data(request: Request, error: Exception) -> Response:
    return error_response(404, "no_data", str(error))


async def _on_http_error(request: Request, error: Any) -> Response:
    return error_response(error.status_code, "not_found" if error.status_code == 404 else "refused", error.detail)


async def _on_bad_request(request: Request, error: Exception) -> Response:
    return error_response(400, "refused", str(error))


async def _on_internal_error(request: Request, error: Exception) -> Response:
    """Answer in one line. The server logs the error with its traceback."""
    text = one_line(f"{type(error).__name__}: {error}")
    return error_response(500, "internal", f"internal error: {text:.200}; the log of chiplog ui has the traceback")
