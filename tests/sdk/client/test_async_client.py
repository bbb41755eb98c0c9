"""The client for asyncio, against a real query service and the file: results, streams, and cancelled tasks."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import chiplog
from chiplog_client import client as client_module
from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas.paths import Paths
from chiplog_schemas.query import result_sink as sink_module
from chiplog_schemas.query.result_file import ResultSpace
from tests.support.loops import in_a_loop
from tests.support.marks import everyday
from tests.support.query_client import FOR_EVER
from tests.support.recorded import create_database
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

MANY = "SELECT range AS n, hash(range) AS h FROM range(300000)"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    found, database = create_database(tmp_path_factory.mktemp("async"), "2026-01-02 03:04:05")
    database.close()
    return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[QueryService]:
    with duckdb.connect() as connection:
        lock_down(connection, 128 << 20)
        running = QueryService(connection, f"ipc://{tmp_path}/query.sock", space=ResultSpace(tmp_path))
        running.start()
        yield running
        running.close()


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results above 100 KB are read in parts."""
    monkeypatch.setattr(client_module, "SMALL_RESULT_BYTES", 100_000)
    monkeypatch.setattr(sink_module, "RESULT_SPILL_BYTES", 100_000)


@pytest.fixture(params=everyday(1, ["collector", "file"]))
def source(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return the arguments that connect to a collector, or to the file without one."""
    if request.param == "file":
        return {"dir": request.getfixturevalue("recorded").root}
    return {"url": request.getfixturevalue("service").address}


@pytest.mark.usefixtures("in_parts")
@in_a_loop
async def test_queries_and_streams_return_what_those_of_the_client_do(source: dict[str, object]) -> None:
    async with await chiplog.connect_async(**source) as client:
        assert (await client.sql("SELECT ? AS a", [7])).rows() == [{"a": 7}]
        numbered = [client.sql("SELECT $n AS n", {"n": n}) for n in range(5)]
        assert [result.rows()[0]["n"] for result in await asyncio.gather(*numbered)] == list(range(5))
        numbers = []
        async for batch in client.stream(MANY):
            numbers += batch["n"].to_pylist()
            assert (await client.sql("SELECT 1 AS a")).rows() == [{"a": 1}]
        assert numbers == list(range(300_000))
        async with client.stream(MANY) as stream:
            assert (stream.columns, stream.n_rows, stream.schema.names) == (["n", "h"], 300_000, ["n", "h"])
        assert [batch async for batch in stream] == []
        with pytest.raises(chiplog.QueryError, match="syntax error"):
            await client.sql("selec")


@proves("cancelled-task-cancels-query", "a task that is cancelled ends its query at the collector")
@in_a_loop
async def test_a_cancelled_task_ends_its_query_and_the_client_answers_the_next_one(
    service: QueryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[bytes] = []
    cancel = service._cancel
    monkeypatch.setattr(service, "_cancel", lambda *given: (cancelled.append(given[-1]), cancel(*given)))
    async with await chiplog.connect_async(service.address) as client:
        for call in (lambda: client.sql(FOR_EVER), lambda: client.stream(FOR_EVER).__anext__()):
            task = asyncio.ensure_future(call())
            begun = lambda: any(worker.job is not None and worker.job.begun for worker in service._workers)  # noqa: E731
            await asyncio.to_thread(wait_until, begun, "a query that runs")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            idle = lambda: not service._pending_ids  # noqa: E731
            await asyncio.to_thread(wait_until, idle, "an end of the query")
            assert client._client._connection is not None, "its connection is kept"
            assert (await client.sql("SELECT 1 AS a")).rows() == [{"a": 1}]
    assert len(cancelled) == 2


@in_a_loop
async def test_a_cancelled_task_ends_its_query_of_the_file(recorded: Paths) -> None:
    async with await chiplog.connect_async(dir=recorded.root) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.sql(FOR_EVER), 0.3)
        assert (await client.sql("SELECT 1 AS a")).rows() == [{"a": 1}]


@in_a_loop
async def test_a_query_that_waits_for_another_one_can_be_cancelled(service: QueryService) -> None:
    async with await chiplog.connect_async(service.address) as client:
        first = asyncio.ensure_future(client.sql(FOR_EVER))
        second = asyncio.ensure_future(client.sql("SELECT 1 AS a"))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


@in_a_loop
async def test_a_stream_has_columns_once_its_query_has_run(recorded: Paths) -> None:
    async with await chiplog.connect_async(dir=recorded.root) as client:
        stream = client.stream("SELECT 1 AS a")
        with pytest.raises(RuntimeError, match="async with"):
            _ = stream.columns
        await stream.close()


def test_errors_of_connecting_are_those_of_the_client(tmp_path: Path) -> None:
    with pytest.raises(chiplog.NoDataError, match="nothing has been recorded"):
        asyncio.run(chiplog.connect_async(dir=tmp_path))
