"""Requests end with the connection of their client."""

import pytest

from chiplog_page.server.source import CLIENTS
from tests.support.endless_queries import EndlessQueries
from tests.support.page_client import PageClient
from tests.support.waiting import WAIT_S


def test_the_queries_of_clients_that_have_gone_are_cancelled(
    reader: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = EndlessQueries(monkeypatch, "straggler_windows")
    for _ in range(CLIENTS):
        with reader.asked("/api/runs/even/verdict"):
            assert endless.began.acquire(timeout=WAIT_S)
        assert endless.endings.get(timeout=WAIT_S) == "cancelled"
    monkeypatch.undo()
    assert reader.ask("/api/runs/even/verdict").status == 200  # all clients are free again


def test_a_body_in_several_parts_is_read_whole(reader: PageClient) -> None:
    query = "SELECT 1 AS n" + " " * 60_000
    assert reader.ask("/api/sql", "POST", {"query": query}).json["rows"] == [[1]]
