"""Answers that open pages share: pages of one run ask for the same after each change of the database."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

KEPT_S = 1.0  # long enough for pages that were notified of the same change

Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class _Answer:
    """An answer, the pages that wait for it, and when it was there."""

    response: "asyncio.Future[Response]"
    n_waiting: int = 0
    ended_at: float | None = None

    def is_kept(self, now: float) -> bool:
        """Return True while it is computed, and for KEPT_S after that; False if it has failed."""
        if self.ended_at is None:
            return True
        has_failed = self.response.cancelled() or self.response.exception() is not None
        return not has_failed and now - self.ended_at < KEPT_S


class SharedAnswers:
    """Computes equal requests once, as long as the database is at the same position.

    Args:
        position: Returns the newest position of the database that the page server has seen; None if it does not watch.
            A page is notified of each later position, and then asks again.
    """

    def __init__(self, position: Callable[[], int | None]) -> None:
        self._position = position
        self._answers: dict[tuple[str, int], _Answer] = {}

    async def get(self, request: str, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Return the answer to a request: that of another page, even if it is still being computed, or a new one.

        It is cancelled when the last page that waits for it has left.
        """
        position = self._position()
        if position is None:
            return await answer()
        now = time.monotonic()
        self._answers = {key: entry for key, entry in self._answers.items() if entry.is_kept(now)}
        found = self._answers.get((request, position))
        if found is None:
            found = self._answers[request, position] = _begun(answer())
        found.n_waiting += 1
        try:
            # A page that leaves must not take the answer from the others.
            return await asyncio.shield(found.response)
        finally:
            found.n_waiting -= 1
            if not found.n_waiting and found.response.cancel():
                self._answers.pop((request, position), None)

    def forget(self) -> None:
        """Discard all shared answers: this server has changed the database, and sees that only at its next poll."""
        self._answers.clear()


def _begun(answer: Awaitable[Response]) -> _Answer:
    begun = _Answer(asyncio.ensure_future(answer))

    def end(response: "asyncio.Future[Response]") -> None:
        begun.ended_at = time.monotonic()
        if not response.cancelled():
            response.exception()  # the pages have it, or have left

    begun.response.add_done_callback(end)
    return begun


def shared(handler: Handler) -> Handler:
    """Share the answers of a handler of GET that depend on the database alone."""

    @functools.wraps(handler)
    async def answer(request: Request) -> Response:
        url = f"{request.url.path}?{request.url.query}"
        found = await request.app.state.shared_answers.get(url, lambda: handler(request))
        # The compression of one response must not change the headers of another.
        return Response(found.body, media_type=found.media_type)

    return answer
