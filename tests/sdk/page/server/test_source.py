"""Clients for the page: opened when needed, and used again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chiplog_client.client import NoDataError
from chiplog_client.results.result import QueryError
from chiplog_page.server.source import CLIENTS, Source
from tests.support.endless_queries import EndlessQueries
from tests.support.hand_written import hand_written
from tests.support.live_runs import fill_live_runs
from tests.support.loops import in_a_loop
from tests.support.waiting import WAIT_S


async def rows_of(source: Source, query: str, **params: int) -> list[dict[str, Any]]:
    return await source.call(lambda client: client.sql(query, params or None).rows())


def test_more_requests_than_clients_are_all_answered(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    source = Source(dir=str(tmp_path), may_start=False)

    async def ask() -> list[int]:
        rows = await asyncio.gather(*(rows_of(source, "SELECT $n AS n", n=n) for n in range(3 * CLIENTS)))
        await source.close()
        return [row[0]["n"] for row in rows]

    assert asyncio.run(ask()) == list(range(3 * CLIENTS))


def test_what_cannot_be_connected_is_said_and_tried_again(tmp_path: Path) -> None:
    source = Source(dir=str(tmp_path), may_start=False)
    for _ in range(2):
        with pytest.raises(NoDataError):
            asyncio.run(source.try_once())
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    asyncio.run(source.try_once())
    asyncio.run(source.close())


@in_a_loop
async def test_a_task_that_is_cancelled_cancels_its_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    source = Source(dir=str(tmp_path), may_start=False)
    endless = EndlessQueries(monkeypatch, "endless")
    for _ in range(CLIENTS + 1):
        waiting = asyncio.create_task(rows_of(source, "endless"))
        assert await asyncio.to_thread(endless.began.acquire, timeout=WAIT_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(endless.endings.get, timeout=WAIT_S) == "cancelled"
    await source.close()


@in_a_loop
async def test_a_closed_source_has_cancelled_its_queries_and_refuses_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    source = Source(dir=str(tmp_path), may_start=False)
    endless = EndlessQueries(monkeypatch, "endless")
    waiting = [asyncio.create_task(rows_of(source, "endless")) for _ in range(CLIENTS + 1)]
    for _ in range(CLIENTS):
        assert await asyncio.to_thread(endless.began.acquire, timeout=WAIT_S)
    await source.close()
    kinds = [error.kind for error in await asyncio.gather(*waiting, return_exceptions=True)]  # type: ignore[union-attr]
    assert sorted(kinds) == [*["cancelled"] * CLIENTS, "stopping"]


@in_a_loop
async def test_an_iterator_has_a_client_until_its_end(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    source = Source(dir=str(tmp_path), may_start=False)
    streams = [source.iterate(lambda client: iter(client.sql("FROM range(3)").tuples())) for _ in range(CLIENTS)]
    assert [await anext(stream) for stream in streams] == [(0,)] * CLIENTS
    other = asyncio.create_task(rows_of(source, "SELECT 1 AS n"))
    assert [row async for row in streams[0]] == [(1,), (2,)]
    assert await other == [{"n": 1}]
    for stream in streams[1:]:
        await stream.aclose()
    await source.close()


def test_keys_that_cannot_be_used_are_an_error_of_the_request(tmp_path: Path) -> None:
    source = Source("tcp://host.invalid:bad")
    with pytest.raises(QueryError, match="bad") as failed:
        asyncio.run(rows_of(source, "SELECT 1"))
    assert failed.value.kind == "unreachable"
    with pytest.raises(ValueError, match="bad"):
        asyncio.run(source.try_once())
