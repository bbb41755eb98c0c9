"""Queries that end only when they are cancelled, in place of those of a test."""

import queue
import threading
from typing import Any

import pytest

from chiplog_client.client import Client
from chiplog_client.results.result import QueryError
from tests.support.query_client import FOR_EVER


class EndlessQueries:
    """Makes queries with certain words endless.

    Args:
        patch: Undoes it.
        words: Part of these queries.

    Attributes:
        began: Released at the begin of each.
        endings: The kind of QueryError with which each ended.
    """

    def __init__(self, patch: pytest.MonkeyPatch, words: str) -> None:
        self.began = threading.Semaphore(0)
        self.endings: queue.SimpleQueue[str] = queue.SimpleQueue()
        sql = Client.sql

        def endless(client: Client, query: str, *given: Any, **named: Any) -> Any:
            if words not in query:
                return sql(client, query, *given, **named)
            self.began.release()
            try:
                return sql(client, FOR_EVER)
            except QueryError as error:
                self.endings.put(error.kind)
                raise

        patch.setattr(Client, "sql", endless)
