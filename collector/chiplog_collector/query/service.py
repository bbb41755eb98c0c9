"""Answer SQL while the index writes: a socket, a queue, and two threads that only read.

One thread owns the ROUTER socket: it receives queries, answers pings at once, passes queries to the workers and
interrupts overdue ones. A worker runs one query at a time on a dedicated cursor, in a read-only transaction, and
converts the result into an Arrow IPC stream without creating Python objects.

Before a query reaches the index, another process parses it and decides whether it is admitted: see `sql_guard`.
"""

import contextlib
import logging
import os
import queue
import select
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import zmq

from chiplog_collector.query.binding import bind_ipc
from chiplog_collector.query.change_request import ChangeRequest, Submit
from chiplog_collector.query.file_reader import FileReader
from chiplog_collector.query.flush_demand import QueryDemand
from chiplog_collector.query.kept_results import KeptResults
from chiplog_collector.query.sql_guard import Connection, ForkedChild, SqlError, SqlGuardProcess, lock_down
from chiplog_collector.query.suspect_queries import RunningQueries, digest_of
from chiplog_schemas._version import __version__
from chiplog_schemas.addresses import ipc_path, is_ipc, is_loopback
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.limits import (
    FILES_LOOK_S,
    HEARTBEAT_INTERVAL_S,
    LINGER_MS,
    PEER_SILENT_S,
)
from chiplog_schemas.model.change_record import RETENTION_ACTIONS
from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.process.file_lock import file_id
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.arrow_messages import count_rows
from chiplog_schemas.query.duckdb_errors import corruption_reason
from chiplog_schemas.query.execute import DAMAGED, failure_of, stream_result, timeout_of
from chiplog_schemas.query.query_messages import (
    QUERY_WAIT_S,
    QUESTION_VERSIONS,
    REQUEST_BYTES_MAX,
    RESULT_BYTES_MAX,
    QueryMessageKind,
    QueryProtocolError,
    QueryRejected,
    one_line,
)
from chiplog_schemas.query.result_file import ResultFile, ResultSpace
from chiplog_schemas.query.result_sink import ResultSink
from chiplog_schemas.security.permissions import Role
from chiplog_schemas.security.zap import (
    AuthenticatedClient,
    PeerConnection,
    ReceivedMessage,
    ZapAuthenticator,
    connection_of,
    receive,
)
from chiplog_schemas.sql import READS
from chiplog_schemas.transport.router import TcpListenerThrottle, bind_any

__all__ = ["QueryService", "lock_down"]

BIND_WAIT_S = 5.0  # a predecessor may still be stopping
BIND_PAUSE_S = 0.1
POLL_S = 0.25  # the longest pause of the loop; also how often an overdue query is interrupted again
ANSWERS_BYTES_MAX = 2 * RESULT_BYTES_MAX  # results passed to ZeroMQ and not yet sent; above it no query starts
ANSWERS_PER_PEER_MAX = 128  # above what may wait; a client that never reads its answers gets no more than this
REQUESTS_PER_TURN = 100  # received before the loop turns to its workers again
ANSWER_AFTER_S = 1.0  # after its deadline a query is answered, whether it has been interrupted yet or not
STUCK_AFTER_S = 15.0  # after this only the end of the process ends the query
CLOSE_WAIT_S = 5.0  # for the workers, after their queries were interrupted
ROLLBACK_TRIES = 3  # the first attempt may be hit by an interruption that was meant for the query
_DOMAIN = "query"
_log = logging.getLogger("chiplog.index")
_STOPPING = "the collector is stopping; ask again later"
_SENDING = "other answers are still being sent; ask again later"
_CANCELLED = "the query was cancelled by its client"
_NO_WRITER = "changes are not possible here; start the collector and ask it"
_NO_ADMIN = (
    "changes need the collector's Unix socket, or a key with the role admin: on its host run "
    "chiplog keys allow KEY --role reader --role admin"
)
_EXCERPT_CHARS = 80  # of a refused query, and …
_LOGGED_CHARS = 500  # … of a query that broke DuckDB, in the log
_COPY_BYTES = 64 * 1024  # below this copying a frame is cheaper than tracking it


@dataclass(frozen=True, slots=True)
class _LargeResult:
    """A result that its client reads in parts."""

    file: ResultFile
    n_rows: int


_Answer = list[Any] | _LargeResult


@dataclass(slots=True)
class _Job:
    """One query in progress.

    The lock orders its end and its interruption, so that the next query is not interrupted.
    """

    peer: bytes
    client: AuthenticatedClient
    connection: PeerConnection | None
    id: bytes
    sql: str
    params: list[Any] | dict[str, Any] | None
    timeout_s: float
    arrived: float
    digest: bytes = b""
    flush: int = 0  # of the index, which the query must see
    place: int = -1  # among the running queries
    time_zone: str = ""
    bytes_max: int = 0  # above it the client takes the result in parts; 0: never
    deadline: float = 0.0
    begun: float | None = None  # set when it runs, after the guard admitted it
    timed_out: bool = False
    is_cut_off: bool = False  # because the collector stops, not because of its time limit
    is_cancelled: bool = False  # by its client
    is_answered: bool = False
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_abandoned(self) -> bool:
        """Return True if the client has closed its connection."""
        return self.connection is not None and self.connection.is_closed

    def timeout(self) -> list[bytes]:
        """Return the answer that the query was cancelled, took too long, or has no time left."""
        if self.is_cancelled:
            return query_messages.failure(self.id, "cancelled", _CANCELLED)
        if self.is_cut_off:
            return query_messages.failure(self.id, "stopping", _STOPPING)
        return query_messages.failure(self.id, *timeout_of(self.timeout_s))


class _Worker(threading.Thread):
    """Runs queries one after the other on a dedicated cursor."""

    def __init__(self, number: int, service: "QueryService", cursor: Connection) -> None:
        super().__init__(name=f"chiplog-query-{number}", daemon=True)
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()  # at most the one it works on
        self.job: _Job | None = None  # set and cleared by the service's thread
        self._service = service
        self._cursor = cursor
        self._time_zone: str | None = None  # of the cursor; None: as it was opened

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            answer = self._answer(job)
            with job.lock:
                job.ended = True  # also for a job that never ran
            self._service._running.end(job.place)
            self._service._finished(self, job, answer)

    def interrupt(self, job: _Job, *, by_end: bool = False) -> None:
        with job.lock:
            if not job.ended:
                job.is_cut_off = job.is_cut_off or (by_end and not job.timed_out)
                job.timed_out = True
                self._cursor.interrupt()

    def _answer(self, job: _Job) -> _Answer | None:
        """Run the query and return its answer, None if the next process must answer."""
        sink = ResultSink(self._service._space, job.bytes_max) if job.bytes_max else ResultSink()
        answer = self._answer_into(sink, job)
        if not isinstance(answer, _LargeResult):
            sink.close_file()
        return answer

    def _answer_into(self, sink: ResultSink, job: _Job) -> _Answer | None:
        try:
            self._service._sql_guard.check(job.sql, job.deadline)  # safeguard: parser-wait-bounded
            if (demand := self._service._demand) is not None:
                demand.wait(job.flush, job.deadline)  # safeguard: query-waits-for-flush
            job.begun = time.monotonic()
            n_rows = self._run_query(job, sink)
        except QueryRejected as error:
            return query_messages.failure(job.id, "refused", str(error))
        except SqlError as error:
            return query_messages.failure(job.id, "sql", str(error))
        except TimeoutError:  # before it ran
            return job.timeout()
        # BaseException, because arro3 is Rust and its panics are not Exceptions. A worker that ends is never replaced.
        except BaseException as error:
            if self._is_invalidated():  # safeguard: invalidated-query-asked-again
                self._service._broken(job, error)
                return None
            return self._failure(job, sink, error)
        if sink.file is not None:
            return _LargeResult(sink.file, n_rows)
        return query_messages.result(job.id, n_rows, sink.data)

    def _run_query(self, job: _Job, sink: ResultSink) -> int:
        if job.timed_out:
            raise TimeoutError
        if job.time_zone != self._time_zone:  # safeguard: query-time-zone
            self._cursor.execute(query_messages.time_zone_setting(job.time_zone))
            self._time_zone = job.time_zone
        try:
            stream_result(self._cursor, job.sql, job.params, sink)
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

    def _failure(self, job: _Job, sink: ResultSink, error: BaseException) -> list[bytes]:
        if job.timed_out:
            return job.timeout()
        failure = failure_of(error, sink)
        if failure.kind == DAMAGED:
            self._service.damage = corruption_reason(error)
            return query_messages.failure(
                job.id, "busy", "the database is damaged and is rebuilt from the log; ask again"
            )
        return query_messages.failure(job.id, *failure)


class QueryService:
    """Answers queries at an address until it is closed.

    connection: the index's own; it provides a cursor for each worker and is not used otherwise. Call `lock_down` on it
    before. running: the queries of all services of this process; by default of this one alone. demand: wakes the
    writer; by default there is none, and a query sees what is written. parser: the child that parses the first queries.
    files: directory of the collector's saved files; by default there is none.
    gate: admits only readers' keys at TCP addresses. Required beyond loopback. context: the gate's; by default a new
    one. space: for results that clients read in parts; by default there is none, and a large result is refused.
    `counts` has the number of answers and refusals, by name. `damage` names the damage of the file that a query
    proved. Both may be read from any thread. `must_restart` and `is_invalidated`: the process must be replaced.
    """

    def __init__(
        self,
        connection: Connection,
        address: str,
        gate: ZapAuthenticator | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        bounds: Limits | None = None,
        running: RunningQueries | None = None,
        demand: QueryDemand | None = None,
        parser: ForkedChild | None = None,
        files: Path | None = None,
        submit: Submit | None = None,
        space: ResultSpace | None = None,
    ) -> None:
        if gate is None and not (is_ipc(address) or is_loopback(address)):
            raise ValueError(f"query address {address} is reachable from other machines; it needs CURVE keys")
        self.address = address
        self._bounds = bounds or Limits()
        self.counts: Counter[str] = Counter()
        self.damage: str | None = None
        self.must_restart = False  # a query that cannot be cancelled is running, or none can run
        self.is_invalidated = False  # DuckDB no longer runs any statement
        self._gate = None if is_ipc(address) else gate
        self._own_context = context is None
        self._context = context if context is not None else zmq.Context()
        self._sql_guard = SqlGuardProcess(parser)
        self._workers = [_Worker(number, self, connection.cursor()) for number in range(self._bounds.queries_at_once)]
        self._waiting: deque[_Job] = deque()
        self._pending_ids: set[tuple[bytes, bytes]] = set()  # peer and id of every waiting or running query
        self._running = running if running is not None else RunningQueries()
        self._demand = demand
        self._file_reader = FileReader(files)
        self._submit = submit
        self._requests: list[ChangeRequest] = []  # without an answer
        self._request_answers: queue.SimpleQueue[tuple[ChangeRequest, list[bytes]]] = queue.SimpleQueue()
        self._space = space
        self._kept = KeptResults()
        self._answers_at_end = True
        self._finished_jobs: queue.SimpleQueue[tuple[_Worker, _Job, _Answer | None]] = queue.SimpleQueue()
        self._in_flight: list[tuple[Any, int]] = []  # ZeroMQ's trackers of large answers, and their bytes
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closing = threading.Event()
        self._bound = threading.Event()
        self._bind_error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="chiplog-query", daemon=True)

    def start(self) -> None:
        """Bind and start to answer. Raises OSError (not zmq.ZMQError) when the address cannot be bound."""
        for worker in self._workers:
            worker.start()
        self._file_reader.start()
        self._thread.start()
        self._bound.wait()  # _serve sets it after at most BIND_WAIT_S
        if self._bind_error is not None:
            error = self._bind_error
            self.close()
            raise OSError(f"query address {self.address} cannot be bound: {error}") from error

    def close(self, *, answer: bool = True) -> None:
        """Stop: accept no more queries, interrupt the running ones, answer, close. May be called twice.

        answer: whether to answer that the collector stops. If False, clients send their queries to the next process.
        """
        if self._closing.is_set():
            return
        self._answers_at_end = answer
        self._closing.set()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        for worker in self._workers:
            worker.jobs.put(None)
        for worker in self._workers:
            if worker.ident is not None:
                worker.join(CLOSE_WAIT_S)
        self._file_reader.close(CLOSE_WAIT_S)
        while not self._finished_jobs.empty():  # what came too late to be answered
            _, _, late = self._finished_jobs.get()
            if isinstance(late, _LargeResult):
                late.file.close()
        self._sql_guard.close()
        # A worker that could not be interrupted would still write to the pipe.
        if not (self._file_reader.is_alive or any(worker.is_alive() for worker in self._workers)):
            os.close(self._wake_read)
            os.close(self._wake_write)
        if self._own_context:
            self._context.term()

    # -- called by workers
    def _broken(self, job: _Job, error: BaseException) -> None:
        self._running.freeze()
        if not self.is_invalidated:
            sql = one_line(job.sql)[:_LOGGED_CHARS]
            _log.error("DuckDB broke down: %s; while this query ran: %s", one_line(str(error)), sql)
        self.is_invalidated = True

    def _finished(self, worker: _Worker, job: _Job, answer: _Answer | None) -> None:
        self._finished_jobs.put((worker, job, answer))
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # the pipe is already full of wake-ups

    # -- the thread that owns the socket
    def _serve(self) -> None:
        socket = self._context.socket(zmq.ROUTER)
        try:
            try:
                self._bind(socket)
            except (zmq.ZMQError, OSError) as error:
                self._bind_error = error
                return
            finally:
                self._bound.set()
            self._loop(socket)
            self._drain(socket)
            if is_ipc(self.address):
                with contextlib.suppress(FileNotFoundError):
                    # Before the close: afterwards it may belong to another process.
                    os.unlink(ipc_path(self.address))
        finally:
            self._kept.close()
            socket.close(linger=LINGER_MS)

    def _bind(self, socket: "zmq.Socket[bytes]") -> None:
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
        socket.setsockopt(zmq.SNDHWM, ANSWERS_PER_PEER_MAX)
        socket.setsockopt(zmq.RCVHWM, self._bounds.queries_waiting_max)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an answer that cannot be sent is counted, not dropped silently
        # A stopped client must not keep its answer in the index's memory: disconnect it, which makes ZeroMQ free the
        # answer.
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_INTERVAL_S * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(PEER_SILENT_S * 1000))
        if self._gate is not None:
            self._gate.secure(socket, _DOMAIN)
        deadline = time.monotonic() + BIND_WAIT_S
        while True:
            try:
                if is_ipc(self.address):
                    bind_ipc(socket, self.address)
                else:
                    bind_any(socket, self.address)
                return
            except (zmq.ZMQError, OSError) as error:
                if error.errno not in (zmq.EADDRINUSE, zmq.EADDRNOTAVAIL) or time.monotonic() > deadline:
                    raise
            if self._closing.wait(BIND_PAUSE_S):
                raise OSError("closed before it was bound")

    def _loop(self, socket: "zmq.Socket[bytes]") -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        shutter = TcpListenerThrottle(socket, [self.address])
        bound, next_poll_s = self._file_id(), 0.0
        while not self._closing.is_set():
            now = time.monotonic()
            shutter.tick(now)  # safeguard: index-descriptors-kept
            if now >= next_poll_s:
                next_poll_s = now + FILES_LOOK_S
                bound = self._check_file(socket, bound)
            self._send_answers(socket)
            self._refuse_overdue(socket, now)
            self._dispatch(now)
            self._interrupt_overdue(socket, now)
            self._kept.drop_idle(now)  # safeguard: result-of-gone-client-dropped
            ready = dict(poller.poll(self._pause_ms(now)))
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            if socket in ready:
                self._receive(socket)

    def _file_id(self) -> tuple[int, int] | None:
        return file_id(ipc_path(self.address)) if is_ipc(self.address) else None

    def _check_file(self, socket: "zmq.Socket[bytes]", bound: tuple[int, int] | None) -> tuple[int, int] | None:
        """Bind a Unix socket again whose file was removed, on the same ROUTER: queries in progress continue."""
        if self._file_id() == bound:  # safeguard: removed-sql-socket-made-again
            return bound
        try:
            ensure_private_dir(ipc_path(self.address).parent)
            bind_ipc(socket, self.address)
        except (OSError, zmq.ZMQError):
            return bound  # the disk refuses, or another process listens there: the next check tries again
        _log.warning("the socket %s was removed and has been restored", self.address)
        return self._file_id()

    def _drain(self, socket: "zmq.Socket[bytes]") -> None:
        """Answer all waiting clients, and those whose queries end in time after the interruption."""
        if not self._answers_at_end:
            self._waiting.clear()
            for worker in self._workers:
                if worker.job is not None:
                    worker.interrupt(worker.job, by_end=True)
            return
        for job in self._waiting:
            self._send(socket, job, query_messages.failure(job.id, "stopping", _STOPPING))
        self._waiting.clear()
        for request in self._requests:  # the change may have reached the log: the client asks again
            self._send(socket, request, query_messages.failure(request.id, "stopping", _STOPPING))
        deadline = time.monotonic() + CLOSE_WAIT_S / 2
        while any(worker.job for worker in self._workers) and time.monotonic() < deadline:
            for worker in self._workers:
                if worker.job is not None:
                    worker.interrupt(worker.job, by_end=True)
            select.select([self._wake_read], [], [], 0.05)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            self._send_answers(socket)

    def _receive(self, socket: "zmq.Socket[bytes]") -> None:
        for _ in range(REQUESTS_PER_TURN):
            try:
                received = receive(socket, self._gate, _DOMAIN, time.monotonic())
            except zmq.Again:
                return
            peer = received.routing
            try:
                question = query_messages.parse(received.frames)
            except QueryProtocolError as error:
                self.counts["malformed"] += 1
                if error.id and not received.client.is_refused:
                    self._send_frames(socket, peer, query_messages.failure(error.id, "refused", str(error)))
                continue
            if received.client.is_refused:  # safeguard: each-query-checked
                self.counts["not_allowed"] += 1
                self._send_frames(socket, peer, query_messages.failure(question.id, "refused", received.client.refusal))
                continue
            if question.kind == QueryMessageKind.PING:
                info = {
                    "versions": list(QUESTION_VERSIONS),
                    "pid": os.getpid(),
                    "waiting": (peer, question.id) in self._pending_ids or (peer, question.id) in self._kept,
                    "version": __version__,
                    "reads": READS,
                }
                self._send_frames(socket, peer, query_messages.pong(question.id, info))
            elif question.kind == QueryMessageKind.ASK:
                self._enqueue(socket, question, received)
            elif question.kind in (QueryMessageKind.MANAGE, QueryMessageKind.WAIT):
                self._pass_on(socket, question, received)
            elif question.kind == QueryMessageKind.READ:
                self._read_file(socket, question, received)
            elif question.kind == QueryMessageKind.CANCEL:
                self._cancel(socket, peer, question.id)
            elif question.kind == QueryMessageKind.FETCH:
                self._send_frames(socket, peer, self._read_result(peer, question))
            else:
                self.counts["unexpected"] += 1

    def _pass_on(
        self, socket: "zmq.Socket[bytes]", question: query_messages.QueryMessage, received: ReceivedMessage
    ) -> None:
        """Pass a change, or a wait, on to the writer."""
        peer = received.routing
        if (peer, question.id) in self._pending_ids:
            return
        if self._submit is None:
            self._send_frames(socket, peer, query_messages.failure(question.id, "refused", _NO_WRITER))
        elif question.kind == QueryMessageKind.MANAGE and question.action in RETENTION_ACTIONS:
            message = f"action {question.action!r} is a step of the collector's own retention"
            self._send_frames(socket, peer, query_messages.failure(question.id, "refused", message))
        elif question.kind == QueryMessageKind.MANAGE and not _may_change(received):  # safeguard: changes-need-admin
            self.counts["not_allowed"] += 1
            self._send_frames(socket, peer, query_messages.failure(question.id, "forbidden", _NO_ADMIN))
        elif len(self._requests) >= self._bounds.queries_waiting_max:
            message = f"{len(self._requests)} requests are already waiting; try again later"
            self._send_frames(socket, peer, query_messages.failure(question.id, "busy", message))
        else:
            request = ChangeRequest(peer, received.client, question, time.monotonic(), self._request_answered)
            self._pending_ids.add((peer, question.id))
            self._requests.append(request)
            self._submit(request)

    def _request_answered(self, request: ChangeRequest, frames: list[bytes]) -> None:
        self._request_answers.put((request, frames))
        self._wake()

    def _read_file(
        self, socket: "zmq.Socket[bytes]", question: query_messages.QueryMessage, received: ReceivedMessage
    ) -> None:
        """Have a part of a saved file read, unless too much waits already."""
        peer = received.routing
        if (peer, question.id) in self._pending_ids:
            return
        busy = ""
        if self._answer_bytes() > ANSWERS_BYTES_MAX:
            busy = _SENDING
        elif len(self._requests) >= self._bounds.queries_waiting_max:
            busy = f"{len(self._requests)} requests are already waiting; try again later"
        if busy:
            self._send_frames(socket, peer, query_messages.failure(question.id, "busy", busy))
            return
        request = ChangeRequest(peer, received.client, question, time.monotonic(), self._request_answered)
        self._pending_ids.add((peer, question.id))
        self._requests.append(request)
        self._file_reader.submit(request)  # safeguard: slow-file-answers-pings

    def _read_result(self, peer: bytes, question: query_messages.QueryMessage) -> list[bytes]:
        """Return the answer to FETCH: at most RESULT_PART_BYTES, read right away."""
        if self._answer_bytes() > ANSWERS_BYTES_MAX:
            return query_messages.failure(question.id, "busy", _SENDING)
        self._note_read()
        return self._kept.read_part((peer, question.id), question.offset, question.n_bytes, time.monotonic())

    def _note_read(self) -> None:
        if self._demand is not None:
            self._demand.note_read()

    def _cancel(self, socket: "zmq.Socket[bytes]", peer: bytes, id: bytes) -> None:
        """End a query of this peer, waiting or running, or drop its result."""
        self._kept.drop((peer, id))
        for job in self._waiting:
            if (job.peer, job.id) == (peer, id):  # safeguard: cancel-of-own-query-only
                self._waiting.remove(job)
                job.is_cancelled = True
                self._send(socket, job, job.timeout())
                return
        for worker in self._workers:
            if worker.job is not None and (worker.job.peer, worker.job.id) == (peer, id):
                worker.job.is_cancelled = True
                worker.interrupt(worker.job)

    def _answer_bytes(self) -> int:
        """Return the size of the large answers that ZeroMQ has not sent yet."""
        self._in_flight = [(tracker, size) for tracker, size in self._in_flight if not tracker.done]
        return sum(size for _, size in self._in_flight)

    def _enqueue(
        self,
        socket: "zmq.Socket[bytes]",
        question: query_messages.QueryMessage,
        received: ReceivedMessage,
    ) -> None:
        peer = received.routing
        if (peer, question.id) in self._pending_ids:
            return  # sent again although it is here: its answer will follow
        job = _Job(
            peer=peer,
            client=received.client,
            connection=connection_of(received),
            id=question.id,
            sql=question.sql,
            params=question.params,
            timeout_s=min(question.timeout_s, self._bounds.query_timeout_s),
            time_zone=question.time_zone,
            bytes_max=question.bytes_max if self._space is not None else 0,
            arrived=time.monotonic(),
            digest=digest_of(question.sql, question.params),
            flush=self._demand.ask() if self._demand is not None else 0,
        )
        self._pending_ids.add((peer, question.id))
        if len(self._waiting) >= self._bounds.queries_waiting_max:
            self._drop_abandoned()
        if self._running.is_refused(job.digest):  # safeguard: suspect-refused-third-time
            self.counts["refused_for_ends"] += 1
            message = f"query {one_line(job.sql)[:_EXCERPT_CHARS]} ended the index twice; rewrite it"
            self._send(socket, job, query_messages.failure(job.id, "refused", message))
        elif len(self._waiting) >= (limit := self._bounds.queries_waiting_max):  # safeguard: waiting-queries-bounded
            message = f"{limit} queries are already waiting; try again later"
            self._send(socket, job, query_messages.failure(job.id, "busy", message))
        else:
            self._waiting.append(job)
            self._dispatch(job.arrived)

    def _dispatch(self, now: float) -> None:
        answer_bytes = self._answer_bytes()
        for worker in self._workers:
            if not self._waiting or answer_bytes > ANSWERS_BYTES_MAX:
                return
            while self._waiting and self._waiting[0].is_abandoned:
                self._drop(self._waiting.popleft())
            if worker.job is None and self._waiting:
                place = self._running.begin(self._waiting[0].digest)
                if place is None:
                    return  # a suspect runs alone, or waits to
                worker.job = self._waiting.popleft()
                worker.job.place = place
                worker.job.deadline = now + worker.job.timeout_s
                worker.jobs.put(worker.job)

    def _drop_abandoned(self) -> None:
        """Drop the waiting queries of clients that have disconnected, to make room for others."""
        for job in [job for job in self._waiting if job.is_abandoned]:
            self._waiting.remove(job)
            self._drop(job)

    def _drop(self, job: _Job) -> None:
        self._pending_ids.discard((job.peer, job.id))
        self.counts["abandoned"] += 1

    def _refuse_overdue(self, socket: "zmq.Socket[bytes]", now: float) -> None:
        while self._waiting and now - self._waiting[0].arrived > QUERY_WAIT_S:
            job = self._waiting.popleft()
            message = f"the query waited {QUERY_WAIT_S:g} s behind others; try again later"
            self._send(socket, job, query_messages.failure(job.id, "busy", message))

    def _interrupt_overdue(self, socket: "zmq.Socket[bytes]", now: float) -> None:
        # Repeatedly, because a cursor ignores an interruption between two statements.
        for worker in self._workers:
            if worker.job is not None and (worker.job.is_cancelled or worker.job.is_abandoned):
                worker.interrupt(worker.job)
            if worker.job is not None and now >= worker.job.deadline:  # safeguard: long-query-cancelled
                worker.interrupt(worker.job)
                # A single function on one long value does not see an interruption before it has ended.
                if now >= worker.job.deadline + ANSWER_AFTER_S and not worker.job.is_answered:
                    worker.job.is_answered = True
                    self._send(socket, worker.job, worker.job.timeout())
                # A query that waits for the guard, after other queries' texts, is not stuck.
                begun = worker.job.begun
                # safeguard: waiting-for-parser-not-stuck, uncancellable-query-ends-process
                is_stuck = begun is not None and now >= max(begun, worker.job.deadline) + STUCK_AFTER_S
                self.must_restart = self.must_restart or is_stuck
        # safeguard: stuck-parser-ends-process
        self.must_restart = self.must_restart or self._sql_guard.must_restart(now)

    def _pause_ms(self, now: float) -> int:
        deadlines = [worker.job.deadline for worker in self._workers if worker.job and worker.job.deadline > now]
        return max(1, int(1000 * min([POLL_S, *(deadline - now for deadline in deadlines)])))

    def _send_answers(self, socket: "zmq.Socket[bytes]") -> None:
        while not self._finished_jobs.empty():
            worker, job, answer = self._finished_jobs.get()
            worker.job = None
            if isinstance(answer, _LargeResult):
                answer = self._keep(job, answer)
            if answer is not None and not job.is_answered:
                self._send(socket, job, answer)
        while not self._request_answers.empty():
            request, frames = self._request_answers.get()
            self._requests.remove(request)
            self._send(socket, request, frames)

    def _keep(self, job: _Job, result: _LargeResult) -> list[bytes]:
        """Keep a large result; return the answer to its query."""
        if job.is_answered or job.is_cancelled:
            result.file.close()
            return job.timeout()
        self._note_read()
        return self._kept.keep((job.peer, job.id), result.file, result.n_rows, job.connection, time.monotonic())

    def _send(self, socket: "zmq.Socket[bytes]", job: _Job | ChangeRequest, frames: list[Any]) -> None:
        self._pending_ids.discard((job.peer, job.id))
        gate, permit = self._gate, job.client.permit
        if gate is not None and permit is not None and not gate.is_still_allowed(permit, _DOMAIN, time.monotonic()):
            self.counts["not_allowed"] += 1  # revoked while its query ran: the answer is no longer for it
            return
        self._send_frames(socket, job.peer, frames)

    def _send_frames(self, socket: "zmq.Socket[bytes]", peer: bytes, frames: list[Any]) -> None:
        size = sum(len(frame) for frame in frames)
        try:
            if size <= _COPY_BYTES:
                socket.send_multipart([peer, *frames], zmq.NOBLOCK)
            else:
                tracker = socket.send_multipart([peer, *frames], zmq.NOBLOCK, copy=False, track=True)
                self._in_flight.append((tracker, size))
        except zmq.ZMQError:  # the peer is gone, or does not read
            self.counts["undeliverable"] += 1
        else:
            self.counts["answered"] += 1


def _may_change(received: ReceivedMessage) -> bool:
    """Return True if a client may change what was recorded: through the Unix socket, or with the role admin."""
    permit = received.client.permit
    return received.peer_pid is not None or (permit is not None and Role.ADMIN in permit.roles)
