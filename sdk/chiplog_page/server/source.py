"""The collector, for the page: a few clients, each of which serves one request at a time in a thread.

The queries of a request are cancelled when the task that waits for them is, and when the server ends.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

import zmq

from chiplog_client.client import Client, connect
from chiplog_client.results.result import QueryError
from chiplog_schemas.query.query_messages import one_line

CLIENTS = 4  # a collector runs two queries at once; more requests wait here, in their order
STATE_TIMEOUT_S = 10.0  # as long as a peer may be silent: the page then reports that there is no answer
CLOSE_WAIT_S = 4.0  # for clients that connect, or change data: less than the server waits for its thread
_STATE = "SELECT position, n_deleted FROM reads.state"
_Value = TypeVar("_Value")


class _Seat:
    """A client, which is opened when it is needed, and what it does now."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.n_lost = 0  # of the source, when the client was opened
        self.cancelled = threading.Event()  # of the request that has the seat
        self._ended: asyncio.Future[None] | None = None

    async def run(self, call: Callable[[], _Value]) -> _Value:
        """Return what a function returns in a thread, which continues if the waiting task is cancelled.

        The exit of the process waits for the threads of an executor before it closes the server, which would cancel
        their queries. These threads are daemons, and the server waits for them.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        outcome: Future[_Value] = Future()

        def work() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nothing waits
                loop.call_soon_threadsafe(ended.set_result, None)

        threading.Thread(target=work, name="chiplog-page-query", daemon=True).start()
        self._ended = ended
        await asyncio.shield(ended)
        return outcome.result()

    def when_idle(self, call: Callable[["_Seat"], None]) -> None:
        """Call a function with this seat as soon as its thread has ended."""
        if self._ended is None or self._ended.done():
            call(self)
        else:
            self._ended.add_done_callback(lambda _: call(self))


class Source:
    """Clients of one collector or directory, opened when they are needed.

    Args:
        url: As of `chiplog.connect`.
        dir: As of `chiplog.connect`.
        may_start: Whether the first client may start daemons for waiting journals.
    """

    def __init__(self, url: str | None = None, dir: str | None = None, *, may_start: bool = True) -> None:
        self._url, self._dir, self._may_start = url, dir, may_start
        self._free_clients: asyncio.LifoQueue[_Seat] = asyncio.LifoQueue()
        for _ in range(CLIENTS):
            self._free_clients.put_nowait(_Seat())
        self._taken: set[_Seat] = set()
        self._n_lost = 0  # how often a collector that had answered was silent
        self._is_stopped = False

    async def state(self) -> dict[str, object]:
        """Return `position`, which grows whenever the database changes, and `n_deleted`, with each deletion."""
        [row] = await self.call(lambda client: client.sql(_STATE, timeout_s=STATE_TIMEOUT_S).rows())
        return row

    async def call(self, action: Callable[[Client], _Value]) -> _Value:
        """Run a function with a client, in a thread.

        Raises QueryError (kind `unreachable` also if the keys cannot be used); NoDataError; and what the function
        raises.
        """
        async with self._seat() as seat:
            return await seat.run(lambda: action(self._connected(seat)))

    async def iterate(self, action: Callable[[Client], Iterator[_Value]]) -> AsyncGenerator[_Value, None]:
        """Yield what an iterator yields, which has a client until its end. Raises as `call`."""
        async with self._seat() as seat:
            values = await seat.run(lambda: action(self._connected(seat)))
            while (value := await seat.run(lambda: next(values, None))) is not None:
                yield value

    async def try_once(self) -> None:
        """Connect, so that a wrong address or a missing key is known at once. Raises as `chiplog.connect`."""
        async with self._seat() as seat:
            await seat.run(lambda: self._client(seat).sql("SELECT 1"))

    def stop(self) -> None:
        """Cancel all queries, and refuse further ones."""
        self._is_stopped = True
        for seat in self._taken:
            seat.cancelled.set()

    async def close(self) -> None:
        """Stop, and close the clients."""
        self.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WAIT_S):
                for _ in range(CLIENTS):
                    seat = await self._free_clients.get()
                    if seat.client is not None:
                        await seat.run(seat.client.close)

    @contextlib.asynccontextmanager
    async def _seat(self) -> AsyncIterator[_Seat]:
        """Wait for a client, and free it once its thread has ended."""
        seat = await self._free_clients.get()
        seat.cancelled = threading.Event()
        self._taken.add(seat)
        try:
            if self._is_stopped:
                raise QueryError("stopping", "the server of the page ends")
            yield seat
        except (OSError, zmq.ZMQError) as error:  # such as too many open files
            raise QueryError("unreachable", one_line(str(error))) from error
        except QueryError as error:
            # A silent collector costs an open client a whole timeout, and a new one 5 s.
            if error.kind == "unreachable" and seat.client is not None:
                self._n_lost = max(self._n_lost, seat.n_lost + 1)
            raise
        finally:
            self._taken.discard(seat)
            seat.cancelled.set()
            seat.when_idle(self._free_clients.put_nowait)

    def _connected(self, seat: _Seat) -> Client:
        try:
            return self._client(seat)
        except ValueError as error:
            raise QueryError("unreachable", one_line(str(error))) from error

    def _client(self, seat: _Seat) -> Client:
        """Return the client of a seat, whose queries end with the request. Raises as `chiplog.connect`."""
        if seat.client is not None and seat.n_lost != self._n_lost:
            seat.client.close()
            seat.client = None
        if seat.client is None:
            seat.n_lost = self._n_lost
            seat.client = connect(self._url, dir=self._dir, start=self._may_start)
            self._may_start = False
        seat.client._cancelled = seat.cancelled
        return seat.client
