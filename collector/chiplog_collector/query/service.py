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
from pathlib import Path
from typing import Any

import zmq

from chiplog_collector.query.change_request import ChangeRequest, Submit
from chiplog_collector.query.file_reader import FileReader
from chiplog_collector.query.flush_demand import QueryDemand
from chiplog_collector.query.kept_results import KeptResults
from chiplog_collector.query.query_job import STOPPING, Answer, LargeResult, QueryJob
from chiplog_collector.query.query_socket import QuerySocket
from chiplog_collector.query.query_worker import ColdRows, QueryWorker
from chiplog_collector.query.sql_guard import Connection, ForkedChild, SqlGuardProcess, lock_down
from chiplog_collector.query.suspect_queries import RunningQueries, digest_of
from chiplog_schemas._version import __version__
from chiplog_schemas.addresses import ipc_path, is_ipc, is_loopback
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.limits import (
    FILES_LOOK_S,
)
from chiplog_schemas.model.change_record import INDEX_ACTIONS
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import (
    QUERY_WAIT_S,
    QUESTION_VERSIONS,
    RESULT_BYTES_MAX,
    QueryMessageKind,
    QueryProtocolError,
    one_line,
)
from chiplog_schemas.query.result_file import ResultSpace
from chiplog_schemas.security.permissions import Role
from chiplog_schemas.security.zap import (
    ReceivedMessage,
    ZapAuthenticator,
    connection_of,
    receive,
)
from chiplog_schemas.sql import READS
from chiplog_schemas.transport.router import TcpListenerThrottle

__all__ = ["QueryService", "lock_down"]

POLL_S = 0.25  # the longest pause of the loop; also how often an overdue query is interrupted again
ANSWERS_BYTES_MAX = 2 * RESULT_BYTES_MAX  # results passed to ZeroMQ and not yet sent; above it no query starts
REQUESTS_PER_TURN = 100  # received before the loop turns to its workers again
ANSWER_AFTER_S = 1.0  # after its deadline a query is answered, whether it has been interrupted yet or not
STUCK_AFTER_S = 15.0  # after this only the end of the process ends the query
CLOSE_WAIT_S = 5.0  # for the workers, after their queries were interrupted
_DOMAIN = "query"
_log = logging.getLogger("chiplog.index")
_SENDING = "other answers are still being sent; ask again later"
_NO_WRITER = "changes are not possible here; start the collector and ask it"
_NO_ADMIN = (
    "changes need the collector's Unix socket, or a key with the role admin: on its host run "
    "chiplog keys allow KEY --role reader --role admin"
)
_EXCERPT_CHARS = 80  # of a refused query, and …
_LOGGED_CHARS = 500  # … of a query that broke DuckDB, in the log


class QueryService:
    """Answers queries at an address until it is closed.

    connection: the index's own; it provides a cursor for each worker and is not used otherwise. Call `lock_down` on it
    before. running: the queries of all services of this process; by default of this one alone. demand: wakes the
    writer; by default there is none, and a query sees what is written. parser: the child that parses the first queries.
    files: directory of the collector's saved files; by default there is none.
    authenticator: admits only readers' keys at TCP addresses. Required beyond loopback. context: the one of the
    authenticator; by default a new one. space: for results that clients read in parts; by default there is none, and a
    large result is refused. cold: rows that are in files; by default there are none.
    `counts` has the number of answers and refusals, by name. `damage` names the damage of the file that a query
    proved. Both may be read from any thread. `must_restart` and `is_invalidated`: the process must be replaced.
    """

    def __init__(
        self,
        connection: Connection,
        address: str,
        authenticator: ZapAuthenticator | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        limits: Limits | None = None,
        running: RunningQueries | None = None,
        demand: QueryDemand | None = None,
        parser: ForkedChild | None = None,
        files: Path | None = None,
        submit: Submit | None = None,
        space: ResultSpace | None = None,
        cold: ColdRows | None = None,
    ) -> None:
        if authenticator is None and not (is_ipc(address) or is_loopback(address)):
            raise ValueError(f"query address {address} is reachable from other machines; it needs CURVE keys")
        self.address = address
        self._limits = limits or Limits()
        self.counts: Counter[str] = Counter()
        self.damage: str | None = None
        self.must_restart = False  # a query that cannot be cancelled is running, or none can run
        self.is_invalidated = False  # DuckDB no longer runs any statement
        self._authenticator = None if is_ipc(address) else authenticator
        self._own_context = context is None
        self._context = context if context is not None else zmq.Context()
        self._sql_guard = SqlGuardProcess(parser)
        self._waiting: deque[QueryJob] = deque()
        self._pending_ids: set[tuple[bytes, bytes]] = set()  # peer and id of every waiting or running query
        self._running = running if running is not None else RunningQueries()
        self._demand = demand
        self._file_reader = FileReader(files, None if cold is None else cold.fetch_content)
        self._submit = submit
        self._requests: list[ChangeRequest] = []  # without an answer
        self._request_answers: queue.SimpleQueue[tuple[ChangeRequest, list[bytes]]] = queue.SimpleQueue()
        self._space = space
        self._workers = [
            QueryWorker(number, connection.cursor(), self._sql_guard, self._running, demand, space, self, cold)
            for number in range(self._limits.queries_at_once)
        ]
        self._kept = KeptResults()
        self._answers_at_end = True
        self._finished_jobs: queue.SimpleQueue[tuple[QueryWorker, QueryJob, Answer | None]] = queue.SimpleQueue()
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
            if isinstance(late, LargeResult):
                late.file.close()
        self._sql_guard.close()
        # A worker that could not be interrupted would still write to the pipe.
        if not (self._file_reader.is_alive or any(worker.is_alive() for worker in self._workers)):
            os.close(self._wake_read)
            os.close(self._wake_write)
        if self._own_context:
            self._context.term()

    # -- called by workers
    def broken(self, job: QueryJob, error: BaseException) -> None:
        """Have the process replaced: DuckDB runs no statement any more. job: the query that ran."""
        self._running.freeze()
        if not self.is_invalidated:
            sql = one_line(job.sql)[:_LOGGED_CHARS]
            _log.error("DuckDB broke down: %s; while this query ran: %s", one_line(str(error)), sql)
        self.is_invalidated = True

    def damaged(self, reason: str | None) -> None:
        """Keep why the file is damaged, for the writer."""
        self.damage = reason

    def finished(self, worker: QueryWorker, job: QueryJob, answer: Answer | None) -> None:
        """Pass an answer to the thread that owns the socket."""
        self._finished_jobs.put((worker, job, answer))
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # the pipe is already full of wake-ups

    # -- the thread that owns the socket
    def _serve(self) -> None:
        socket = QuerySocket(
            self._context,
            self.address,
            self._authenticator,
            _DOMAIN,
            self._limits.queries_waiting_max,
            self._closing,
            self.counts,
        )
        try:
            try:
                socket.bind()
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
            socket.close()

    def _loop(self, socket: QuerySocket) -> None:
        poller = zmq.Poller()
        poller.register(socket.socket, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        shutter = TcpListenerThrottle(socket.socket, [self.address])
        next_poll_s = 0.0
        while not self._closing.is_set():
            now = time.monotonic()
            shutter.tick(now)  # safeguard: index-descriptors-kept
            if now >= next_poll_s:
                next_poll_s = now + FILES_LOOK_S
                socket.restore_file()
            self._send_answers(socket)
            self._refuse_overdue(socket, now)
            self._dispatch(socket, now)
            self._interrupt_overdue(socket, now)
            self._kept.drop_idle(now)  # safeguard: result-of-gone-client-dropped
            ready = dict(poller.poll(self._pause_ms(now)))
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            if socket.socket in ready:
                self._receive(socket)

    def _drain(self, socket: QuerySocket) -> None:
        """Answer all waiting clients, and those whose queries end in time after the interruption."""
        if not self._answers_at_end:
            self._waiting.clear()
            for worker in self._workers:
                if worker.job is not None:
                    worker.interrupt(worker.job, by_end=True)
            return
        for job in self._waiting:
            self._send(socket, job, query_messages.failure(job.id, "stopping", STOPPING))
        self._waiting.clear()
        for request in self._requests:  # the change may have reached the log: the client asks again
            self._send(socket, request, query_messages.failure(request.id, "stopping", STOPPING))
        deadline = time.monotonic() + CLOSE_WAIT_S / 2
        while any(worker.job for worker in self._workers) and time.monotonic() < deadline:
            for worker in self._workers:
                if worker.job is not None:
                    worker.interrupt(worker.job, by_end=True)
            select.select([self._wake_read], [], [], 0.05)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            self._send_answers(socket)

    def _receive(self, socket: QuerySocket) -> None:
        for _ in range(REQUESTS_PER_TURN):
            try:
                received = receive(socket.socket, self._authenticator, _DOMAIN, time.monotonic())
            except zmq.Again:
                return
            peer = received.routing
            try:
                question = query_messages.parse(received.frames)
            except QueryProtocolError as error:
                self.counts["malformed"] += 1
                if error.id and not received.client.is_refused:
                    socket.send(peer, query_messages.failure(error.id, "refused", str(error)))
                continue
            if received.client.is_refused:  # safeguard: each-query-checked
                self.counts["not_allowed"] += 1
                socket.send(peer, query_messages.failure(question.id, "refused", received.client.refusal))
                continue
            if question.kind == QueryMessageKind.PING:
                info = {
                    "versions": list(QUESTION_VERSIONS),
                    "pid": os.getpid(),
                    "waiting": (peer, question.id) in self._pending_ids or (peer, question.id) in self._kept,
                    "version": __version__,
                    "reads": READS,
                }
                socket.send(peer, query_messages.pong(question.id, info))
            elif question.kind == QueryMessageKind.ASK:
                self._enqueue(socket, question, received)
            elif question.kind in (QueryMessageKind.MANAGE, QueryMessageKind.WAIT):
                self._pass_on(socket, question, received)
            elif question.kind == QueryMessageKind.READ:
                self._read_file(socket, question, received)
            elif question.kind == QueryMessageKind.CANCEL:
                self._cancel(socket, peer, question.id)
            elif question.kind == QueryMessageKind.FETCH:
                socket.send(peer, self._read_result(socket, peer, question))
            else:
                self.counts["unexpected"] += 1

    def _pass_on(self, socket: QuerySocket, question: query_messages.QueryMessage, received: ReceivedMessage) -> None:
        """Pass a change, or a wait, on to the writer."""
        peer = received.routing
        if (peer, question.id) in self._pending_ids:
            return
        if self._submit is None:
            socket.send(peer, query_messages.failure(question.id, "refused", _NO_WRITER))
        elif question.kind == QueryMessageKind.MANAGE and question.action in INDEX_ACTIONS:
            message = f"action {question.action!r} is one that only the collector itself takes"
            socket.send(peer, query_messages.failure(question.id, "refused", message))
        elif question.kind == QueryMessageKind.MANAGE and not _may_change(received):  # safeguard: changes-need-admin
            self.counts["not_allowed"] += 1
            socket.send(peer, query_messages.failure(question.id, "forbidden", _NO_ADMIN))
        elif len(self._requests) >= self._limits.queries_waiting_max:
            message = f"{len(self._requests)} requests are already waiting; try again later"
            socket.send(peer, query_messages.failure(question.id, "busy", message))
        else:
            request = ChangeRequest(peer, received.client, question, time.monotonic(), self._request_answered)
            self._pending_ids.add((peer, question.id))
            self._requests.append(request)
            self._submit(request)

    def _request_answered(self, request: ChangeRequest, frames: list[bytes]) -> None:
        self._request_answers.put((request, frames))
        self._wake()

    def _read_file(self, socket: QuerySocket, question: query_messages.QueryMessage, received: ReceivedMessage) -> None:
        """Have a part of a saved file read, unless too much waits already."""
        peer = received.routing
        if (peer, question.id) in self._pending_ids:
            return
        busy = ""
        if socket.unsent_bytes() > ANSWERS_BYTES_MAX:
            busy = _SENDING
        elif len(self._requests) >= self._limits.queries_waiting_max:
            busy = f"{len(self._requests)} requests are already waiting; try again later"
        if busy:
            socket.send(peer, query_messages.failure(question.id, "busy", busy))
            return
        request = ChangeRequest(peer, received.client, question, time.monotonic(), self._request_answered)
        self._pending_ids.add((peer, question.id))
        self._requests.append(request)
        self._file_reader.submit(request)  # safeguard: slow-file-answers-pings

    def _read_result(self, socket: QuerySocket, peer: bytes, question: query_messages.QueryMessage) -> list[bytes]:
        """Return the answer to FETCH: at most RESULT_PART_BYTES, read right away."""
        if socket.unsent_bytes() > ANSWERS_BYTES_MAX:
            return query_messages.failure(question.id, "busy", _SENDING)
        self._note_read()
        return self._kept.read_part((peer, question.id), question.offset, question.n_bytes, time.monotonic())

    def _note_read(self) -> None:
        if self._demand is not None:
            self._demand.note_read()

    def _cancel(self, socket: QuerySocket, peer: bytes, id: bytes) -> None:
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

    def _enqueue(
        self,
        socket: QuerySocket,
        question: query_messages.QueryMessage,
        received: ReceivedMessage,
    ) -> None:
        peer = received.routing
        if (peer, question.id) in self._pending_ids:
            return  # sent again although it is here: its answer will follow
        job = QueryJob(
            peer=peer,
            client=received.client,
            connection=connection_of(received),
            id=question.id,
            sql=question.sql,
            params=question.params,
            timeout_s=min(question.timeout_s, self._limits.query_timeout_s),
            time_zone=question.time_zone,
            bytes_max=question.bytes_max if self._space is not None else 0,
            arrived=time.monotonic(),
            digest=digest_of(question.sql, question.params),
            flush=self._demand.ask() if self._demand is not None else 0,
        )
        self._pending_ids.add((peer, question.id))
        if len(self._waiting) >= self._limits.queries_waiting_max:
            self._drop_abandoned()
        if self._running.is_refused(job.digest):  # safeguard: suspect-refused-third-time
            self.counts["refused_for_ends"] += 1
            message = f"query {one_line(job.sql)[:_EXCERPT_CHARS]} ended the index twice; rewrite it"
            self._send(socket, job, query_messages.failure(job.id, "refused", message))
        elif len(self._waiting) >= (limit := self._limits.queries_waiting_max):  # safeguard: waiting-queries-bounded
            message = f"{limit} queries are already waiting; try again later"
            self._send(socket, job, query_messages.failure(job.id, "busy", message))
        else:
            self._waiting.append(job)
            self._dispatch(socket, job.arrived)

    def _dispatch(self, socket: QuerySocket, now: float) -> None:
        answer_bytes = socket.unsent_bytes()
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

    def _drop(self, job: QueryJob) -> None:
        self._pending_ids.discard((job.peer, job.id))
        self.counts["abandoned"] += 1

    def _refuse_overdue(self, socket: QuerySocket, now: float) -> None:
        while self._waiting and now - self._waiting[0].arrived > QUERY_WAIT_S:
            job = self._waiting.popleft()
            message = f"the query waited {QUERY_WAIT_S:g} s behind others; try again later"
            self._send(socket, job, query_messages.failure(job.id, "busy", message))

    def _interrupt_overdue(self, socket: QuerySocket, now: float) -> None:
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

    def _send_answers(self, socket: QuerySocket) -> None:
        while not self._finished_jobs.empty():
            worker, job, answer = self._finished_jobs.get()
            worker.job = None
            if isinstance(answer, LargeResult):
                answer = self._keep(job, answer)
            if answer is not None and not job.is_answered:
                self._send(socket, job, answer)
        while not self._request_answers.empty():
            request, frames = self._request_answers.get()
            self._requests.remove(request)
            self._send(socket, request, frames)

    def _keep(self, job: QueryJob, result: LargeResult) -> list[bytes]:
        """Keep a large result; return the answer to its query."""
        if job.is_answered or job.is_cancelled:
            result.file.close()
            return job.timeout()
        self._note_read()
        return self._kept.keep((job.peer, job.id), result.file, result.n_rows, job.connection, time.monotonic())

    def _send(self, socket: QuerySocket, job: QueryJob | ChangeRequest, frames: list[Any]) -> None:
        self._pending_ids.discard((job.peer, job.id))
        authenticator, permit = self._authenticator, job.client.permit
        if (
            authenticator is not None
            and permit is not None
            and not authenticator.is_still_allowed(permit, _DOMAIN, time.monotonic())
        ):
            self.counts["not_allowed"] += 1  # revoked while its query ran: the answer is no longer for it
            return
        socket.send(job.peer, frames)


def _may_change(received: ReceivedMessage) -> bool:
    """Return True if a client may change what was recorded: through the Unix socket, or with the role admin."""
    permit = received.client.permit
    return received.peer_pid is not None or (permit is not None and Role.ADMIN in permit.roles)
