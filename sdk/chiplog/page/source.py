"""The collector, for the page: a few clients, each of which runs one query at a time in a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from chiplog.query.client import Client, connect
from chiplog.query.result import QueryError

CLIENTS = 4  # a collector runs two queries at once; more requests wait here, in their order
STATE_TIMEOUT_S = 10.0  # as long as a peer may be silent: the page then reports that there is no answer
_STATE = """
SELECT coalesce(max(next_number), 0)::BIGINT AS position, (SELECT count(*) FROM base.deleted) AS n_deleted
FROM base.position
"""
_Value = TypeVar("_Value")


class Source:
    """Clients of one collector or directory, opened when they are needed.

    Args:
        url: As of `chiplog.connect`.
        dir: As of `chiplog.connect`.
        may_start: Whether the first client may start daemons for waiting journals.
    """

    def __init__(self, url: str | None = None, dir: str | None = None, *, may_start: bool = True) -> None:
        self._url, self._dir, self._may_start = url, dir, may_start
        self._idle: list[Client | None] = [None] * CLIENTS
        self._free = asyncio.Semaphore(CLIENTS)

    async def rows(self, query: str, **params: Any) -> list[dict[str, Any]]:
        """Run one SELECT and return its rows. Raises QueryError; NoDataError and ValueError as `chiplog.connect`."""
        return await self.call(lambda client: client.sql(query, params or None).rows())

    async def state(self) -> dict[str, object]:
        """Return `position`, which grows whenever the database changes, and `n_deleted`, with each deletion."""
        [row] = await self.call(lambda client: client.sql(_STATE, timeout_s=STATE_TIMEOUT_S).rows())
        return row

    async def call(self, action: Callable[[Client], _Value]) -> _Value:
        """Run a function with a client, in a thread."""
        async with self._client() as client:
            return await asyncio.to_thread(action, client)

    async def try_once(self) -> None:
        """Connect, so that a wrong address or a missing key is known at once. Raises as `rows`."""
        await self.call(lambda client: client.sql("SELECT 1"))

    async def close(self) -> None:
        """Close all clients that are idle."""
        idle, self._idle = self._idle, [None] * len(self._idle)
        for client in idle:
            if client is not None:
                await asyncio.to_thread(client.close)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        async with self._free:
            client = self._idle.pop()
            try:
                if client is None:
                    client = await asyncio.to_thread(self._open)
                yield client
            except QueryError as error:
                if error.kind == "unreachable" and client is not None:
                    # A silent collector costs an open client a whole timeout, and a new one 5 s.
                    await asyncio.to_thread(client.close)
                    client = None
                    await self.close()
                raise
            finally:
                self._idle.append(client)

    def _open(self) -> Client:
        client = connect(self._url, dir=self._dir, start=self._may_start)
        self._may_start = False
        return client
