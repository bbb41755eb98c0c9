"""One run: what it is, its ranks, console, events, files, and what may be changed."""

import hashlib
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.client import Client
from chiplog_client.reads.console import Line, LinesRequest, read_lines
from chiplog_client.reads.events import EVENTS_MAX, EventsRequest, read_events
from chiplog_client.reads.failures import read_failures
from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.rank_states import ROW_COLUMNS, row_values
from chiplog_client.reads.run_report import read_outline, read_run
from chiplog_client.reads.saved_files import read_saved_file
from chiplog_client.results.result import QueryError
from chiplog_page.routes.contents import download
from chiplog_page.server.body import json_object
from chiplog_page.server.json_response import columns_of, read_json, to_json
from chiplog_page.server.parameters import LABELS_MAX, choice, integer, optional_integer, repeated
from chiplog_page.server.shared_answers import shared
from chiplog_schemas.limits import FILE_BYTES_MAX

LINES_MAX = 2_000
FIELDS = ("name", "notes", "tags", "project", "group", "job_type")
_LINE_COLUMNS = ["label", "attempt", "stream", "line_no", "ts", "line"]
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ]|$)")
_RESUME = re.compile(r"(\d{1,18})\.(\d{1,18})", re.ASCII)
_EVENT_COLUMNS = ["ts", "label", "attempt", "node", "kind", "level", "message", "body"]


async def get_outline(request: Request) -> Response:
    """GET api/runs/RUN/outline: the row of the run in the view `runs`, and the keys of its metrics.

    label_names: to show in place of labels. For a page that draws curves before it has the whole report.
    """
    run = request.path_params["run"]

    def read(client: Client) -> dict[str, Any]:
        found = read_outline(client, run)
        if found is None:
            raise HTTPException(404, f"there is no run {run!r:.200}")
        return {**found, "labels": []}

    return await read_json(request, read)


@shared
async def get_run(request: Request) -> Response:
    """GET api/runs/RUN: everything about a run that `chiplog show RUN --format json` has."""
    run = request.path_params["run"]

    def read(client: Client) -> dict[str, Any]:
        found = read_run(client, run)
        if found is None:
            raise HTTPException(404, f"there is no run {run!r:.200}")
        return found

    return await read_json(request, read)


@shared
async def get_ranks(request: Request) -> Response:
    """GET api/runs/RUN/ranks: one row per label, as of `chiplog top`. label_names: to show in place of labels."""
    live = request.app.state.live.frames(request.path_params["run"])

    def read(client: Client) -> dict[str, Any]:
        frame = live.read(client)
        if frame is None:
            raise HTTPException(404, f"there is no run {live.run_id!r:.200}, or it has no label yet")
        rows = [row_values(row) for row in frame.rows]
        about = {"now": frame.now, "goodput": frame.goodput, "label_names": frame.label_names}
        return {**about, "columns": ROW_COLUMNS, "rows": rows}

    return await read_json(request, read)


async def get_console(request: Request) -> Response:
    """GET api/runs/RUN/console: printed lines in the order of their times.

    label: only these; may be repeated. search: only lines with it. at: a time; direction: `before` (lines until then,
    the default) or `after`. Without `at` the last lines. limit: lines, at most 2,000. resume: only lines that were
    stored after an earlier answer, whatever their times: the `resume` of that answer. It is null if no line is found.
    """
    query = request.query_params
    asked = LinesRequest(
        request.path_params["run"],
        integer(query, "limit", 500, 1, LINES_MAX),
        tuple(repeated(query, "label", LABELS_MAX)),
        search=query.get("search", ""),
        is_forward=choice(query, "direction", ("before", "after")) == "after",
        at=_time(query.get("at", "")),
        since=_resume_point(query.get("resume", "")),
    )

    def read(client: Client) -> dict[str, Any]:
        rows, newest = read_lines(client, asked)
        resume = None if newest is None else f"{newest[0]}.{newest[1]}"
        return {**columns_of(rows, _LINE_COLUMNS), "resume": resume}

    return await read_json(request, read)


def _time(text: str) -> str | None:
    """Return a time as it was given, if it is one that DuckDB reads, too: 20260102 and 2026-W01-5 are none."""
    try:
        if text and (_DATE.match(text) is None or not datetime.fromisoformat(text)):
            raise ValueError(text)
        return text or None
    except ValueError:
        raise BadRequestError(f"at={text!r:.80} is not a time such as 2026-01-02T03:04:05Z") from None


def _resume_point(text: str) -> Line | None:
    """Return the line of PRODUCER.SEQ."""
    if not text:
        return None
    found = _RESUME.fullmatch(text)
    if found is None:
        raise BadRequestError(f"resume={text!r:.80} is not the `resume` of an answer")
    return int(found[1]), int(found[2])


async def get_events(request: Request) -> Response:
    """GET api/runs/RUN/events: the newest events first, and the number of each kind, with a title in plain words.

    kind, level, label: only events of it; label may be repeated. limit: events, at most 2,000. known: the `digest` of
    an earlier answer; if nothing has changed since, the answer is this digest alone.
    """
    run, query = request.path_params["run"], request.query_params
    limit = integer(query, "limit", 500, 1, EVENTS_MAX)
    labels = repeated(query, "label", LABELS_MAX)
    asked = EventsRequest(run, query.get("kind", ""), query.get("level", ""), tuple(labels), limit)

    def read(client: Client) -> dict[str, Any]:
        events = read_events(client, asked)
        found = {**columns_of(events["rows"], _EVENT_COLUMNS), "kinds": events["kinds"]}
        digest = hashlib.blake2b(to_json(found), digest_size=8).hexdigest()
        return {"digest": digest} if query.get("known") == digest else {**found, "digest": digest}

    return await read_json(request, read)


async def get_failures(request: Request) -> Response:
    """GET api/runs/RUN/failures: all labels of a round, with their seconds from its first failure, in this order.

    attempt: the round, as of the view first_failure; the newest with a failed rank if it is missing. `rounds` lists
    those with a failure. A label has its state, exit, last step, last line, role and the state of its GPUs at its end.
    At most 2,048 labels.
    """
    run, query = request.path_params["run"], request.query_params
    attempt = optional_integer(query, "attempt", 0)
    return await read_json(request, lambda client: read_failures(client, run, attempt))


async def get_file(request: Request) -> Response:
    """GET api/runs/RUN/files/PATH: a saved file. It is always a download: a browser must not run what a run saved.

    bytes: only so many from its start.
    """
    run, path, source = request.path_params["run"], request.path_params["path"], request.app.state.source
    n_most = integer(request.query_params, "bytes", FILE_BYTES_MAX, 0, FILE_BYTES_MAX)
    found = await source.call(lambda client: read_saved_file(client, run, path))
    if found is None:
        raise HTTPException(404, f"run {run!r:.200} saved no file {path!r:.200}")
    try:
        return await download(source, found["sha256"], min(found["bytes"], n_most), path.rpartition("/")[2])
    except QueryError as error:
        if error.kind != "refused":
            raise
        raise HTTPException(404, f"the content of {path!r:.200} has not arrived at the collector: {error}") from None


async def edit_run(request: Request) -> Response:
    """PATCH api/runs/RUN: change name, notes, tags, project, group or job_type. null clears one."""
    run = request.path_params["run"]
    fields = await json_object(request)
    unknown = sorted(fields.keys() - set(FIELDS))
    if unknown or not fields:
        raise BadRequestError(f"{', '.join(unknown) or 'no field'} cannot be changed; give {', '.join(FIELDS)}")
    return await _change(request, lambda client: client.edit_run(run, **fields))


async def delete_run(request: Request) -> Response:
    """DELETE api/runs/RUN: delete a run. force=1: also one with labels that have not ended."""
    run, force = request.path_params["run"], request.query_params.get("force") == "1"
    return await _change(request, lambda client: client.delete_runs([run], force=force, why="deleted on the page"))


async def _change(request: Request, change: Callable[[Client], dict[str, Any]]) -> Response:
    try:
        return await read_json(request, change)
    finally:
        request.app.state.shared_answers.forget()


ROUTES = [
    Route("/runs/{run}", get_run),
    Route("/runs/{run}/outline", get_outline),
    Route("/runs/{run}", edit_run, methods=["PATCH"]),
    Route("/runs/{run}", delete_run, methods=["DELETE"]),
    Route("/runs/{run}/ranks", get_ranks),
    Route("/runs/{run}/console", get_console),
    Route("/runs/{run}/events", get_events),
    Route("/runs/{run}/failures", get_failures),
    Route("/runs/{run}/files/{path:path}", get_file),
]
