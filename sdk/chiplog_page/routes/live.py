"""The live stream: each open page is notified when the database changes, and then requests what it needs."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from chiplog_client.client import NoDataError
from chiplog_client.reads.live_run import LiveRun
from chiplog_client.results.result import QueryError
from chiplog_page.server.json_response import to_json
from chiplog_page.server.source import Source
from chiplog_schemas.query.query_messages import one_line

POLL_INTERVAL_S = 0.5  # between two checks, however many pages are open
ALIVE_S = 15.0  # a comment, so that proxies keep the connection
RUNS_MAX = 64  # whose frames are remembered
_log = logging.getLogger("chiplog")


class Live:
    """Watches the state of the database while a page listens, and remembers frames of runs.

    Args:
        source: The data.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._frames: OrderedDict[str, LiveRun] = OrderedDict()
        self._listeners: set[asyncio.Queue[dict[str, object] | None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._is_closed = False
        self._last: dict[str, object] = {}
        self._n_deleted: object = None

    @property
    def position(self) -> int | None:
        """The newest position that the watch has seen; None while no page listens, or without an answer."""
        position = self._last.get("position") if self._listeners else None
        return position if isinstance(position, int) else None

    def frames(self, run: str) -> LiveRun:
        """Return what reads the frames of a run, with its memory of the earlier ones.

        They have no verdict: the page asks for it in a request of its own.
        """
        live = self._frames.pop(run, None) or LiveRun(run, has_verdict=False, timeout_s=None)
        self._frames[run] = live
        while len(self._frames) > RUNS_MAX:
            self._frames.popitem(last=False)
        return live

    async def changes(self) -> AsyncIterator[dict[str, object] | None]:
        """Yield the state now and whenever it has changed, or an error; None after ALIVE_S without either."""
        queue: asyncio.Queue[dict[str, object] | None] = asyncio.Queue(1)
        self._listeners.add(queue)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._poll())
        elif self._last:
            queue.put_nowait(self._last)
        try:
            while not self._is_closed:
                try:
                    if (state := await asyncio.wait_for(queue.get(), ALIVE_S)) is not None:
                        yield state
                except TimeoutError:
                    yield None
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """End the watch and all streams."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        self._publish(None)

    async def _poll(self) -> None:
        self._last = {}
        while self._listeners:
            state, failure = await self._state()
            if state != self._last:
                if failure is not None:  # once, however long it lasts
                    _log.error("chiplog: the page cannot follow changes", exc_info=failure)
                if "n_deleted" in state and state["n_deleted"] != self._n_deleted:
                    self._n_deleted = state["n_deleted"]
                    self._frames.clear()  # a new run may have the ID of a deleted one
                self._last = state
                self._publish(state)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _state(self) -> tuple[dict[str, object], Exception | None]:
        """Return the state, or an error for the pages, and the exception if it is not a QueryError.

        The watch must not end.
        """
        try:
            return await self._source.state(), None
        except (QueryError, NoDataError) as error:
            return {"error": str(error)}, None
        except Exception as error:
            return {"error": one_line(f"{type(error).__name__}: {error}")}, error

    def _publish(self, state: dict[str, object] | None) -> None:
        """Leave the newest state for each page. A page that does not read it has no use for earlier ones."""
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(state)


async def follow(request: Request) -> Response:
    """GET api/live: server-sent events. `change` has the position of the database and `n_deleted`, or an error.

    The position grows with each change, `n_deleted` with each deletion.
    """

    async def events() -> AsyncIterator[bytes]:
        yield b"retry: 2000\n\n"
        async for state in request.app.state.live.changes():
            yield b": alive\n\n" if state is None else b"event: change\ndata: " + to_json(state) + b"\n\n"

    return StreamingResponse(
        events(), media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"}
    )


ROUTES = [Route("/live", follow)]
