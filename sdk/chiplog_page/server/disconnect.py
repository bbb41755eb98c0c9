"""Cancel the computation of an answer when its client has disconnected."""

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class CancelOnDisconnect:
    """ASGI middleware: cancels the task of a request whose client has closed the connection.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; cancel the answer if the client disconnects."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body: asyncio.Queue[Message] = asyncio.Queue(1)  # the client sends no faster than the body is read

        async def pass_on() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                await body.put(message)

        answer = asyncio.ensure_future(self._app(scope, body.get, send))
        gone = asyncio.ensure_future(pass_on())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                await answer
        finally:
            gone.cancel()
            if answer.cancel():
                with contextlib.suppress(asyncio.CancelledError):
                    await answer
