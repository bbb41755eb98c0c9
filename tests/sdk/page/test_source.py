"""Clients for the page: opened when needed, and used again."""

import asyncio
from pathlib import Path

import pytest

from chiplog.page.source import CLIENTS, Source
from chiplog.query.client import NoDataError
from tests.support.hand_written import hand_written
from tests.support.live_runs import fill_live_runs


def test_more_requests_than_clients_are_all_answered(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    source = Source(dir=str(tmp_path), may_start=False)

    async def ask() -> list[int]:
        rows = await asyncio.gather(*(source.rows("SELECT $n AS n", n=n) for n in range(3 * CLIENTS)))
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
