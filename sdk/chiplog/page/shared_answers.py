"""Answers that open pages share: pages of one run ask for the same after each change of the database."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

KEPT_S = 1.0  # long enough for pages that heard of the same change

Handler = Callable[[Request], Awaitable[Response]]


class SharedAnswers:
    """Computes equal requests once, as long as the database is at the same position.

    Args:
        position: Returns the newest position of the database that the page server has seen; None if it does not watch.
            A page hears of each later position, and then asks again.
    """

    def __init__(self, position: Callable[[], int | None]) -> None:
        self._position = position
        self._answers: dict[tuple[str, int], tuple[float, asyncio.Future[Response]]] = {}

    async def get(self, request: str, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Return the answer to a request: that of another page, even if it is still being computed, or a new one."""
        position = self._position()
        if position is None:
            return await answer()
        now = time.monotonic()
        self._answers = {key: entry for key, entry in self._answers.items() if now - entry[0] < KEPT_S}
        found = self._answers.get((request, position))
        if found is None or _has_failed(found[1]):
            found = now, asyncio.ensure_future(answer())
            self._answers[request, position] = found
        # A page that leaves must not take the answer from the others.
        return await asyncio.shield(found[1])


def shared(handler: Handler) -> Handler:
    """Share the answers of a handler of GET that depend on the database alone."""

    @functools.wraps(handler)
    async def answer(request: Request) -> Response:
        url = f"{request.url.path}?{request.url.query}"
        found = await request.app.state.shared_answers.get(url, lambda: handler(request))
        # The compression of one response must not change the headers of another.
        return Response(found.body, media_type=found.media_type)

    return answer


def _has_failed(answer: "asyncio.Future[Response]") -> bool:
    return answer.done() and (answer.cancelled() or answer.exception() is not None)
