"""The client for asyncio: each call waits in a thread, and a cancelled task cancels its query."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from chiplog_client.client import Client, connect
from chiplog_client.query_parameters import Params
from chiplog_client.result_stream import ResultStream
from chiplog_client.results.result import Result

__all__ = ["AsyncClient", "AsyncResultStream"]

_Value = TypeVar("_Value")


class _Turns:
    """One query takes one thread, however many wait."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._pid = os.getpid()

    @property
    def lock(self) -> asyncio.Lock:
        """The lock of this process: in a forked child, a task that is not there may hold the parent's."""
        if self._pid != os.getpid():
            self._lock, self._pid = asyncio.Lock(), os.getpid()
        return self._lock


class AsyncClient:
    """Runs SQL in asyncio; returned by `connect_async`.

    It runs one query at a time, the others wait; streams are read beside them. A task that is cancelled cancels its
    query at the collector. Close it, or use it in `async with`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turns = _Turns()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by address, as `Client` does."""
        return AsyncClient, (self._client,)

    async def sql(
        self, query: str, params: Params = None, timeout_s: float | None = None, time_zone: str = "UTC"
    ) -> Result:
        """Run one SELECT and return its whole result. Arguments and errors are those of `Client.sql`."""
        cancelled = threading.Event()

        def call() -> Result:
            return self._client.sql(query, params, timeout_s, time_zone, cancelled=cancelled)

        async with self._turns.lock:
            return await _in_thread(call, cancelled)

    def stream(
        self, query: str, params: Params = None, timeout_s: float | None = None, time_zone: str = "UTC"
    ) -> "AsyncResultStream":
        """Return the result of one SELECT batch by batch. Arguments and errors are those of `Client.stream`.

        Examples:
            >>> async for batch in client.stream("FROM metrics"):
            ...     print(batch.num_rows)
        """
        cancelled = threading.Event()

        def call() -> ResultStream:
            return self._client.stream(query, params, timeout_s, time_zone, cancelled=cancelled)

        return AsyncResultStream(call, cancelled, self._turns)

    async def close(self) -> None:
        """Close the connection. May be called twice."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncResultStream:
    """A result of any size as Arrow record batches; returned by `AsyncClient.stream`.

    The query runs when iteration begins, or at `async with`, which gives the stream its columns before.
    """

    def __init__(self, call: Callable[[], ResultStream], cancelled: threading.Event, turns: "_Turns") -> None:
        self._call = call
        self._cancelled = cancelled
        self._turns = turns
        self._stream: ResultStream | None = None

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._running().columns

    @property
    def n_rows(self) -> int:
        """The number of rows of the whole result."""
        return self._running().n_rows

    @property
    def schema(self) -> Any:
        """The schema of the batches, as of `ResultStream`."""
        return self._running().schema

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the batches that are left."""
        return self

    async def __anext__(self) -> Any:
        """Return the next batch. Raises QueryError."""
        stream = await self._open()
        batch = await _in_thread(lambda: next(stream, None), self._cancelled)
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def close(self) -> None:
        """Drop what is left. May be called twice."""
        if self._stream is not None:
            await asyncio.to_thread(self._stream.close)

    async def __aenter__(self) -> "AsyncResultStream":
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> ResultStream:
        if self._stream is None:
            async with self._turns.lock:
                self._stream = await _in_thread(self._call, self._cancelled)
        return self._stream

    def _running(self) -> ResultStream:
        if self._stream is None:
            raise RuntimeError("the query has not run yet; use the stream in `async with`")
        return self._stream


async def open_async_client(url: str | None, dir: Any) -> AsyncClient:
    """Return a client that is connected in a thread. Arguments and errors are those of `chiplog.connect`."""
    return AsyncClient(await _in_thread(lambda: connect(url, dir=dir)))


async def _in_thread(call: Callable[[], _Value], cancelled: threading.Event | None = None) -> _Value:
    """Return the result of a call in a thread.

    cancelled: set when the task is cancelled, which ends the call soon. Without it the call continues, and what it
    returns is closed.
    """
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_drop)
        if cancelled is not None:
            cancelled.set()  # safeguard: cancelled-task-cancels-query
            await asyncio.wait([future])  # the connection is free for the next query then
        raise


def _drop(future: "asyncio.Future[Any]") -> None:
    """Close what a call returned although its task was cancelled."""
    if not future.cancelled() and future.exception() is None and isinstance(future.result(), Client | ResultStream):
        future.result().close()
