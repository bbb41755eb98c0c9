"""A thread that runs queries, one at a time, in read-only transactions."""

import contextlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import duckdb

from chiplog_collector.query.cold_needs import Need, Relations, needs
from chiplog_collector.query.flush_demand import QueryDemand
from chiplog_collector.query.query_job import Answer, LargeResult, QueryJob
from chiplog_collector.query.query_references import References
from chiplog_collector.query.sql_guard import Connection, SqlError, SqlGuardProcess
from chiplog_collector.query.suspect_queries import RunningQueries
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.arrow_messages import count_rows
from chiplog_schemas.query.duckdb_errors import corruption_reason
from chiplog_schemas.query.execute import DAMAGED, failure_of, stream_result
from chiplog_schemas.query.query_messages import QueryRejected
from chiplog_schemas.query.result_file import ResultSpace
from chiplog_schemas.query.result_sink import ResultSink

ROLLBACK_TRIES = 3  # the first attempt may be hit by an interruption that was meant for the query


class WorkerReports(Protocol):
    """What a worker reports to its service."""

    def finished(self, worker: "QueryWorker", job: QueryJob, answer: Answer | None) -> None:
        """Take the answer of a query; None if the next process must answer."""

    def broken(self, job: QueryJob, error: BaseException) -> None:
        """Note that DuckDB runs no statement any more, since this query."""

    def damaged(self, reason: str | None) -> None:
        """Note why the file is damaged, as a query proved."""


class ColdRows(Protocol):
    """Rows outside of the database, in files. relations: the views that may read them."""

    relations: Relations

    def prepare(self, cursor: Connection) -> None:
        """Make a cursor see them."""

    def opened(
        self, cursor: Connection, needed: Mapping[str, Sequence[Need]], deadline: float
    ) -> contextlib.AbstractContextManager[None]:
        """Have the files that a query reads at hand for as long as the block runs, which is within its transaction.

        needed: by large table. deadline: of `time.monotonic()`. Raises QueryRejected.
        """

    def fetch_content(self, digest: str) -> None:
        """Copy a saved content that is elsewhere into the directory of contents. Raises FileNotFoundError, OSError."""


class QueryWorker(threading.Thread):
    """Runs queries one after the other on a dedicated cursor. reports: called in this thread."""

    def __init__(
        self,
        number: int,
        cursor: Connection,
        sql_guard: SqlGuardProcess,
        running: RunningQueries,
        demand: QueryDemand | None,
        space: ResultSpace | None,
        reports: WorkerReports,
        cold: ColdRows | None = None,
    ) -> None:
        super().__init__(name=f"chiplog-query-{number}", daemon=True)
        self.jobs: queue.SimpleQueue[QueryJob | None] = queue.SimpleQueue()  # at most the one it works on
        self.job: QueryJob | None = None  # set and cleared by the service's thread
        self._cursor = cursor
        self._sql_guard = sql_guard
        self._running = running
        self._demand = demand
        self._space = space
        self._reports = reports
        self._cold = cold
        if cold is not None:
            cold.prepare(cursor)
        self._time_zone: str | None = None  # of the cursor; None: as it was opened

    def run(self) -> None:
        """Run queries until the queue yields None."""
        while (job := self.jobs.get()) is not None:
            answer = self._answer(job)
            with job.lock:
                job.ended = True  # also for a job that never ran
            self._running.end(job.place)
            self._reports.finished(self, job, answer)

    def interrupt(self, job: QueryJob, *, by_end: bool = False) -> None:
        """End a query unless it has ended. by_end: because the collector stops."""
        with job.lock:
            if not job.ended:
                job.is_cut_off = job.is_cut_off or (by_end and not job.timed_out)
                job.timed_out = True
                self._cursor.interrupt()

    def _answer(self, job: QueryJob) -> Answer | None:
        """Run the query and return its answer, None if the next process must answer."""
        sink = ResultSink(self._space, job.bytes_max) if job.bytes_max else ResultSink()
        answer = self._answer_into(sink, job)
        if not isinstance(answer, LargeResult):
            sink.close_file()
        return answer

    def _answer_into(self, sink: ResultSink, job: QueryJob) -> Answer | None:
        try:
            found = self._sql_guard.check(job.sql, job.deadline)  # safeguard: parser-wait-bounded
            if (demand := self._demand) is not None:
                demand.wait(job.flush, job.deadline)  # safeguard: query-waits-for-flush
            job.begun = time.monotonic()
            n_rows = self._run_query(job, found, sink)
        except QueryRejected as error:
            return query_messages.failure(job.id, "refused", str(error))
        except SqlError as error:
            return query_messages.failure(job.id, "sql", str(error))
        except TimeoutError:  # before it ran
            return job.timeout()
        # BaseException, because arro3 is Rust and its panics are not Exceptions. A worker that ends is never replaced.
        except BaseException as error:
            if self._is_invalidated():  # safeguard: invalidated-query-asked-again
                self._reports.broken(job, error)
                return None
            return self._failure(job, sink, error)
        if sink.file is not None:
            return LargeResult(sink.file, n_rows)
        return query_messages.result(job.id, n_rows, sink.data)

    def _run_query(self, job: QueryJob, found: References, sink: ResultSink) -> int:
        if job.timed_out:
            raise TimeoutError
        if job.time_zone != self._time_zone:  # safeguard: query-time-zone
            self._cursor.execute(query_messages.time_zone_setting(job.time_zone))
            self._time_zone = job.time_zone
        opened = None
        if self._cold is not None:
            opened = self._cold.opened(self._cursor, needs(found, job.params, self._cold.relations), job.deadline)
        try:
            fetch = None if self._cold is None else self._cold.fetch_content
            stream_result(self._cursor, job.sql, job.params, sink, opened, fetch)
        finally:
            with job.lock:
                # No interruption from here on: one that hit the ROLLBACK would leave the transaction open.
                job.ended = True
            self._roll_back()
        return count_rows(sink.read_stream, sink.n_bytes)

    def _roll_back(self) -> None:
        """End the transaction in any state: a failed one must be rolled back too, and it may already be gone."""
        for _ in range(ROLLBACK_TRIES):
            try:
                self._cursor.execute("ROLLBACK")
                return
            except duckdb.TransactionException:
                return  # no transaction is active
            except duckdb.Error:
                continue  # an interruption that arrived just before

    def _is_invalidated(self) -> bool:
        """Return True if DuckDB refuses all statements, because a query broke an assertion in it."""
        try:
            self._cursor.execute("BEGIN")  # no autocommit: it would make a checkpoint unclean
            self._cursor.execute("SELECT 1").fetchall()
        except duckdb.FatalException:
            return True
        except duckdb.Error:  # a late interruption
            return False
        finally:
            self._roll_back()
        return False

    def _failure(self, job: QueryJob, sink: ResultSink, error: BaseException) -> list[bytes]:
        if job.timed_out:
            return job.timeout()
        failure = failure_of(error, sink)
        if failure.kind == DAMAGED:
            self._reports.damaged(corruption_reason(error))
            return query_messages.failure(
                job.id, "busy", "the database is damaged and is rebuilt from the log; ask again"
            )
        return query_messages.failure(job.id, *failure)
