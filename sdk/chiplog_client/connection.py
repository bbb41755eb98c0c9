"""Query a collector over its socket, and detect when it has exited or was replaced."""

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from chiplog_client import read_model
from chiplog_client.results.result import QueryError
from chiplog_schemas.addresses import is_ipv6
from chiplog_schemas.codec import CodecError
from chiplog_schemas.interrupts import raise_interrupt
from chiplog_schemas.limits import (
    HEARTBEAT_INTERVAL_S,
    LINGER_MS,
    PEER_SILENT_S,
    QUERY_TIMEOUT_S,
    RESULT_PART_BYTES,
)
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import (
    FILE_PART_BYTES_MAX,
    ID_BYTES,
    QUERY_WAIT_S,
    QUESTION_VERSIONS,
    REQUEST_BYTES_MAX,
    RESULT_BYTES_MAX,
    QueryMessageKind,
    QueryProtocolError,
    one_line,
)
from chiplog_schemas.security.curve import HANDSHAKE_FAILED, ClientCurve, parse_handshake_failure
from chiplog_schemas.transport.dealer import require_free_threads

__all__ = ["CollectorConnection"]

ASK_AGAIN_MAX = 10  # repetitions of a query whose index was replaced: each bad query ends the index twice
CHANGE_WAIT_S = 300.0  # a deletion of thousands of runs takes several records
CHANGE_SILENT_S = 3 * PEER_SILENT_S  # an index that exits is restarted within this
FILE_AGAIN_S = 2.0  # a part of a saved file takes milliseconds …
FILE_TRIES = 10  # … and a collector that restarts answers within this many
CANCELLED_POLL_S = 0.05  # how soon a wait ends that another thread cancels
CANCELLED = "the query was cancelled"
BUSY_PAUSE_S = 0.1  # before a part of a result is requested again
SIZE_SLACK_BYTES = 1 << 20  # the head of an answer, in addition to its stream


@dataclass(slots=True)
class _Question:
    """A query, and the ID under which it was sent last."""

    query: str
    params: "list[Any] | dict[str, Any] | None"
    timeout_s: float
    time_zone: str
    bytes_max: int
    id: bytes = b""

    def ask_again(self) -> list[bytes]:
        """Return the request under a new ID. Raises CodecError for parameters that are no plain values."""
        self.id = os.urandom(ID_BYTES)
        return query_messages.request(self.id, self.query, self.params, self.timeout_s, self.time_zone, self.bytes_max)


class CollectorConnection:
    """One DEALER socket to one query address. Used under the client's lock. curve: the reader's keys, for TCP."""

    def __init__(self, address: str, curve: ClientCurve | None = None) -> None:
        self._address = address
        self._curve = curve
        self._peer_info: dict[str, Any] = {}  # what the collector reported when it answered a ping
        self.handshake_error = ""  # why the newest handshake failed
        self._has_failed = False
        self._pid = os.getpid()
        try:
            require_free_threads()
        except OSError as error:
            raise QueryError("unreachable", f"address {address} cannot be used: {error.strerror}") from error
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, RESULT_BYTES_MAX + SIZE_SLACK_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        if curve is not None:
            curve.configure(self._socket)
        self._monitor = self._socket.get_monitor_socket(HANDSHAKE_FAILED)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            self._socket.setsockopt(zmq.IPV6, is_ipv6(address))  # safeguard: reader-connects-ipv6
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise QueryError("unreachable", f"address {address} cannot be used: {error}") from error

    @property
    def is_inherited(self) -> bool:
        """Return True in a forked child: ZeroMQ's threads run in the parent only, so every wait would be endless."""
        return self._pid != os.getpid()

    @property
    def is_broken(self) -> bool:
        """Return True if a new connection is needed: ZeroMQ has ended this one, or it is the parent's."""
        return self._has_failed or self.is_inherited

    def close(self) -> None:
        """Close the socket."""
        if self.is_inherited:
            return
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()

    def ping(self, wait_s: float) -> bool:
        """Return True if a collector answers a ping within `wait_s`.

        Raises QueryError if it speaks other versions, or if the two sides do not agree about keys.
        """
        id = os.urandom(ID_BYTES)
        self._send(query_messages.ping(id))
        deadline = time.monotonic() + wait_s
        while (answer := self._receive(deadline)) is not None:
            if answer.kind == QueryMessageKind.PONG and answer.id == id:
                _check_versions(answer.info, self._address)
                self._peer_info = answer.info
                return True
        return False

    def execute(
        self,
        query: str,
        params: "list[Any] | dict[str, Any] | None",
        timeout_s: float,
        lives: Callable[[], bool],
        time_zone: str = "",
        bytes_max: int = 0,
        cancelled: threading.Event | None = None,
    ) -> query_messages.QueryMessage:
        """Return the RESULT of a query. Raises QueryError. What a signal handler raises cancels the query.

        bytes_max: a larger result is answered with its first PART_OF_RESULT. cancelled: another thread sets it to end
        the query.

        Sends pings while it waits. Silence for as long as the query may take means that the collector has exited. A
        collector that does not know the query is a new one: the query is repeated, each time with a new ID, because the
        new collector also answers old pings, and such answers do not show whether it knows the repeated query.
        """
        self._require_read_model(query)
        question = _Question(query, params, timeout_s, time_zone, bytes_max)
        try:
            query_messages.check_query_size(query)
            frames = question.ask_again()
        except (query_messages.QueryRejected, CodecError) as error:
            raise_interrupt(error)
            raise QueryError("refused", one_line(str(error))) from error
        if len(frames[0]) > REQUEST_BYTES_MAX:
            raise QueryError(
                "refused",
                f"query and parameters of {len(frames[0])} bytes exceed the limit of {REQUEST_BYTES_MAX}; ask in parts",
            )
        try:
            return self._ask(question, frames, lives, cancelled)
        except QueryError:
            raise
        except BaseException:  # Ctrl-C, or another signal's handler
            self.cancel(question.id)  # safeguard: interrupted-query-cancelled
            raise

    def _ask(
        self,
        question: _Question,
        frames: list[bytes],
        lives: Callable[[], bool],
        cancelled: threading.Event | None,
    ) -> query_messages.QueryMessage:
        self._send(frames)
        asked = 1
        last_received = last_ping = time.monotonic()
        deadline = last_received + QUERY_WAIT_S + question.timeout_s + 2 * PEER_SILENT_S
        silent_s = max(PEER_SILENT_S, question.timeout_s)  # an index that exits is restarted within this
        while True:
            answer = self._receive_unless(cancelled, question.id, last_ping + HEARTBEAT_INTERVAL_S)
            now = time.monotonic()
            if answer is not None:
                last_received = now
                if answer.id != question.id:
                    continue  # of an earlier query that was cancelled or repeated
                if answer.kind in (QueryMessageKind.RESULT, QueryMessageKind.PART_OF_RESULT):
                    return answer
                if answer.kind == QueryMessageKind.ERROR:
                    raise QueryError(answer.error_kind, answer.message)
                if answer.kind == QueryMessageKind.PONG and not answer.info.get("waiting"):
                    if asked > ASK_AGAIN_MAX:
                        raise QueryError("internal", f"the collector at {self._address} loses this query; see its log")
                    asked += 1
                    self._send(question.ask_again())
            if now - last_received > silent_s or now > deadline or (answer is None and not lives()):
                stopped = f"the collector at {self._address} has stopped answering"
                raise QueryError(
                    "unreachable", f"{stopped}: {self.handshake_error}" if self.handshake_error else stopped
                )
            if now - last_ping >= HEARTBEAT_INTERVAL_S:
                self._send(query_messages.ping(question.id))
                last_ping = now

    def cancel(self, id: bytes) -> None:
        """End a query, or drop its result. There is no answer."""
        if not self.is_inherited:
            self._send(query_messages.cancel(id))

    def request_part(self, id: bytes, offset: int) -> None:
        """Request a part of the result of a query. The answers come in the order of the requests."""
        self._send(query_messages.fetch(id, offset, RESULT_PART_BYTES))

    def receive_part(
        self, id: bytes, lives: Callable[[], bool], cancelled: threading.Event | None = None
    ) -> query_messages.QueryMessage | None:
        """Return the next part that was requested; None if the collector is busy, after a pause. Raises QueryError.

        lives, cancelled: as of `execute`. A result ends with the process that keeps it.
        """
        last_received = last_ping = time.monotonic()
        while True:
            answer = self._receive_unless(cancelled, id, last_ping + HEARTBEAT_INTERVAL_S)
            now = time.monotonic()
            if answer is not None and answer.id == id:
                last_received = now
                if answer.kind == QueryMessageKind.PART_OF_RESULT:
                    return answer
                if answer.kind == QueryMessageKind.ERROR and answer.error_kind == "busy":
                    time.sleep(BUSY_PAUSE_S)
                    return None
                if answer.kind == QueryMessageKind.ERROR:
                    raise QueryError(answer.error_kind, answer.message)
            is_gone = answer is not None and answer.kind == QueryMessageKind.PONG and not answer.info.get("waiting")
            if is_gone or now - last_received > QUERY_TIMEOUT_S or (answer is None and not lives()):
                message = f"the collector at {self._address} was restarted or has stopped"
                reason = f"{message}, so the rest of the result is lost; ask again"
                raise QueryError("expired", reason)  # safeguard: lost-result-is-expired
            if now - last_ping >= HEARTBEAT_INTERVAL_S:
                self._send(query_messages.ping(id))
                last_ping = now

    def change(self, id: bytes, action: str, arguments: dict[str, Any], lives: Callable[[], bool]) -> dict[str, Any]:
        """Have a change carried out, and return what the collector reports about it. Raises QueryError.

        A collector that does not know the request is a new one: the request is repeated, with the same ID, which the
        log has if the change was carried out. lives: as of `execute`.
        """
        try:
            frames = query_messages.manage(id, action, arguments)
        except CodecError as error:
            raise QueryError("refused", one_line(str(error))) from error
        if len(frames[0]) > REQUEST_BYTES_MAX:
            raise QueryError("refused", f"a change of {len(frames[0])} bytes exceeds {REQUEST_BYTES_MAX}; ask in parts")
        self._send(frames)
        last_received = last_ping = begun = time.monotonic()
        while True:
            answer = self._receive(last_ping + HEARTBEAT_INTERVAL_S)
            now = time.monotonic()
            if now - begun > CHANGE_WAIT_S:
                raise QueryError("busy", "the change is not applied yet; the view events shows when it is")
            if answer is not None and answer.id == id:
                last_received = now
                if answer.kind == QueryMessageKind.DONE:
                    return answer.info
                if answer.kind == QueryMessageKind.ERROR:
                    raise QueryError(answer.error_kind, answer.message)
                if answer.kind == QueryMessageKind.PONG and not answer.info.get("waiting"):
                    self._send(frames)
            if now - last_received > CHANGE_SILENT_S or (answer is None and not lives()):
                reason = self.handshake_error or "it has stopped answering; repeat the command to see what was done"
                raise QueryError("unreachable", f"the collector at {self._address}: {reason}")
            if now - last_ping >= HEARTBEAT_INTERVAL_S:
                self._send(query_messages.ping(id))
                last_ping = now

    def read_file(self, digest: bytes, offset: int, lives: Callable[[], bool]) -> tuple[int, bytes | memoryview]:
        """Return the size of a saved file, and a part of it from `offset` on. Raises QueryError.

        Repeats the question, because a collector that restarts loses it. lives: as of `execute`.
        """
        id = os.urandom(ID_BYTES)
        busy = ""
        for _ in range(FILE_TRIES):
            if not lives():
                break
            self._send(query_messages.read_file(id, digest, offset, FILE_PART_BYTES_MAX))
            until = time.monotonic() + FILE_AGAIN_S
            while (answer := self._receive(until)) is not None:
                if answer.id != id:
                    continue  # of an earlier question
                if answer.kind == QueryMessageKind.PART:
                    return answer.n_bytes, answer.payload
                if answer.kind == QueryMessageKind.ERROR and answer.error_kind == "busy":
                    busy = answer.message
                    time.sleep(max(0.0, until - time.monotonic()))
                elif answer.kind == QueryMessageKind.ERROR:
                    raise QueryError(answer.error_kind, answer.message)
        if busy:
            raise QueryError("busy", busy)
        reason = self.handshake_error or "it has stopped, or is older than this client"
        raise QueryError("unreachable", f"the collector at {self._address} sends nothing of a file: {reason}")

    def _send(self, frames: list[bytes]) -> None:
        self._check_process()
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            pass  # it is unreachable and its queue is full: the wait for an answer detects that

    def _receive_unless(
        self, cancelled: threading.Event | None, id: bytes, deadline: float
    ) -> query_messages.QueryMessage | None:
        """Return the next valid message before `deadline`, or None. Raises QueryError once the query is cancelled."""
        while cancelled is not None:
            if cancelled.is_set():
                self.cancel(id)
                raise QueryError("cancelled", CANCELLED)
            until = min(deadline, time.monotonic() + CANCELLED_POLL_S)
            if (answer := self._receive(until)) is not None or until == deadline:
                return answer
        return self._receive(deadline)

    def _receive(self, deadline: float) -> query_messages.QueryMessage | None:
        """Return the next valid message before `deadline`, or None."""
        self._check_process()
        while True:
            wait_ms = math.ceil(1000 * max(0.0, deadline - time.monotonic()))
            ready = dict(self._poller.poll(wait_ms))
            if self._monitor in ready:
                self._poll_handshake()
            if self._socket not in ready:
                if ready:
                    continue
                return None
            frames = self._socket.recv_multipart(copy=False)
            try:
                return query_messages.parse([frame.buffer for frame in frames])
            except QueryProtocolError as error:
                raise_interrupt(error)
                continue  # ignored: without a valid answer the query ends as unreachable

    def _check_process(self) -> None:
        if self.is_inherited:  # safeguard: inherited-result-expired
            raise QueryError("expired", "this result belongs to the parent of this forked process; ask again here")

    def _require_read_model(self, query: str) -> None:
        """Raise QueryError if a query asks the read model of another version."""
        if read_model.is_asked(query):  # safeguard: read-model-of-own-version
            place = f"the collector at {self._address}"
            reason = read_model.mismatch_reason(place, self._peer_info, "upgrade the collector, and restart it")
            if reason is not None:
                raise QueryError("internal", reason)

    def _poll_handshake(self) -> None:
        """Remember why a handshake failed; raise QueryError if it can never succeed."""
        failure = parse_handshake_failure(self._monitor.recv_multipart(zmq.NOBLOCK), self._address, self._curve)
        if failure is not None:
            self.handshake_error = failure.reason
            if failure.is_final:
                self._has_failed = True
                raise QueryError("unreachable", failure.reason)


def _check_versions(info: dict[str, Any], address: str) -> None:
    versions = info.get("versions")
    if (
        isinstance(versions, list)
        and len(versions) == 2
        and all(type(version) is int for version in versions)
        and (versions[1] < QUESTION_VERSIONS[0] or versions[0] > QUESTION_VERSIONS[1])
    ):
        raise QueryError(
            "unreachable",
            f"the collector at {address} speaks query versions {versions}, this client {list(QUESTION_VERSIONS)}; "
            "install the same release on both sides",
        )
