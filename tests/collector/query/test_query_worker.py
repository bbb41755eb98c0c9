"""A worker: a real cursor of DuckDB, and a real child that parses."""

import queue
import time
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from chiplog_collector.query.query_job import Answer, QueryJob
from chiplog_collector.query.query_worker import QueryWorker
from chiplog_collector.query.sql_guard import SqlGuardProcess
from chiplog_collector.query.suspect_queries import RunningQueries, digest_of
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import QueryMessageKind
from chiplog_schemas.security.zap import AuthenticatedClient
from tests.support.query_client import FOR_EVER
from tests.support.waiting import WAIT_S, wait_until


class Reports:
    """What a worker reports."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()

    def finished(self, worker: QueryWorker, job: QueryJob, answer: Answer | None) -> None:
        self.answers.put(answer)

    def broken(self, job: QueryJob, error: BaseException) -> None:
        raise AssertionError(error)

    def damaged(self, reason: str | None) -> None:
        raise AssertionError(reason)


@pytest.fixture
def worker() -> Iterator[QueryWorker]:
    guard = SqlGuardProcess(None)
    with duckdb.connect() as connection:
        running = QueryWorker(0, connection.cursor(), guard, RunningQueries(), None, None, Reports())
        running.start()
        yield running
        running.jobs.put(None)
        running.join(WAIT_S)
    guard.close()


def begin(worker: QueryWorker, sql: str) -> QueryJob:
    now = time.monotonic()
    job = QueryJob(
        b"peer", AuthenticatedClient(is_local=True), None, bytes(8), sql, None, WAIT_S, now, deadline=now + WAIT_S
    )
    place = worker._running.begin(digest_of(sql, None))  # as the service does
    assert place is not None
    job.place = place
    worker.jobs.put(job)
    return job


def answer_of(worker: QueryWorker) -> Any:
    reports = worker._reports
    assert isinstance(reports, Reports)
    frames = reports.answers.get(timeout=WAIT_S)
    assert isinstance(frames, list)
    return query_messages.parse(frames)


def test_queries_are_answered_one_after_the_other(worker):
    for sql in ("SELECT 1 AS a UNION ALL SELECT 2", "SELECT 1 WHERE false"):
        begin(worker, sql)
    assert [(answer.kind, answer.n_rows) for answer in (answer_of(worker), answer_of(worker))] == [
        (QueryMessageKind.RESULT, 2),
        (QueryMessageKind.RESULT, 0),
    ]


def test_an_interrupted_query_ends_and_the_next_is_answered(worker):
    job = begin(worker, FOR_EVER)
    wait_until(lambda: job.begun is not None, "a query that runs")
    wait_until(lambda: worker.interrupt(job) or job.ended, "its end")
    assert answer_of(worker).error_kind == "timeout"
    worker.interrupt(job)
    begin(worker, "SELECT 1")
    assert answer_of(worker).n_rows == 1
