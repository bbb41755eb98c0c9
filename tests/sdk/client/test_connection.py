"""The connection to a collector, against a socket of which the test decides when and what it answers."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
import zmq

from chiplog_client import connection as remote_module
from chiplog_client.client import QueryError, connect
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import QueryMessage, QueryMessageKind
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S


class FakeCollector:
    """A ROUTER that answers what the test wants."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(1000 * WAIT_S))
        self._socket.bind(address)
        self._peer = b""

    def receive(self, kind: QueryMessageKind | None = None) -> QueryMessage:
        """Return the next message, or the next one of this kind."""
        while True:
            self._peer, *frames = self._socket.recv_multipart()
            message = query_messages.parse(frames)
            if kind in (None, message.kind):
                return message

    def answer(self, frames: list) -> None:
        self._socket.send_multipart([self._peer, *frames])

    def admit(self) -> None:
        """Answer the ping of a client that connects."""
        self.answer(query_messages.pong(self.receive().id, {"versions": [1, 1], "waiting": False}))

    def close(self) -> None:
        self._socket.close()
        self._context.term()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises, also where the shell that started the tests in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def collector(tmp_path, monkeypatch) -> Iterator[FakeCollector]:
    monkeypatch.setattr(remote_module, "HEARTBEAT_INTERVAL_S", 0.03)
    monkeypatch.setattr(remote_module, "PEER_SILENT_S", WAIT_S)
    bound = FakeCollector(f"ipc://{tmp_path}/query.sock")
    yield bound
    bound.close()


def one_row() -> bytes:
    table = pa.table({"a": [1]})
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return sink.getvalue().to_pybytes()


def test_pings_that_piled_up_while_there_was_no_collector_cost_one_repetition(collector):
    with ThreadPoolExecutor(1) as pool:
        connected = pool.submit(connect, collector.address)
        collector.admit()
        with connected.result() as client:
            asked = pool.submit(client.sql, "SELECT 1 AS a")
            first = collector.receive()
            pings = [collector.receive() for _ in range(2 * remote_module.ASK_AGAIN_MAX)]
            assert {(ping.kind, ping.id) for ping in pings} == {(QueryMessageKind.PING, first.id)}
            for ping in pings:
                collector.answer(query_messages.pong(ping.id, {"waiting": False}))
            seen = [collector.receive() for _ in range(10)]
            repeated = [question for question in seen if question.kind == QueryMessageKind.ASK]
            assert len(repeated) == 1
            collector.answer(query_messages.result(repeated[0].id, 1, one_row()))
            assert asked.result().rows() == [{"a": 1}]


@proves(
    "read-model-of-own-version",
    "a client of another version than the collector does not misread its views",
    condition=False,
)
def test_an_older_collector_answers_users_and_is_named_to_its_own_readers(collector):
    with ThreadPoolExecutor(1) as pool:
        connected = pool.submit(connect, collector.address)
        collector.admit()
        with connected.result() as client:
            with pytest.raises(
                QueryError, match=rf"the collector at {collector.address} has no read model; this client"
            ):
                client.sql("FROM reads.state", timeout_s=0.1)
            asked = pool.submit(client.sql, "SELECT 1 AS a")
            collector.answer(query_messages.result(collector.receive(QueryMessageKind.ASK).id, 1, one_row()))
            assert asked.result().rows() == [{"a": 1}]


@proves("interrupted-query-cancelled", "Ctrl-C ends the query at the collector, not only the wait for it")
def test_ctrl_c_cancels_the_query_before_it_is_raised(collector, interrupts):
    """The collector here is an older one, which refuses CANCEL: that must be harmless."""

    def serve() -> tuple[QueryMessage, QueryMessage]:
        collector.admit()
        asked = collector.receive(QueryMessageKind.ASK)
        os.kill(os.getpid(), signal.SIGINT)
        cancelled = collector.receive(QueryMessageKind.CANCEL)
        collector.answer(query_messages.failure(cancelled.id, "refused", "message kind 20 is unknown"))
        collector.admit()
        again = collector.receive(QueryMessageKind.ASK)
        collector.answer(query_messages.result(again.id, 1, one_row()))
        return asked, cancelled

    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        with connect(collector.address) as client:
            with pytest.raises(KeyboardInterrupt):
                client.sql("SELECT 1 AS a")
            assert client.sql("SELECT 1 AS a").rows() == [{"a": 1}]
        asked, cancelled = served.result()
        assert asked.id == cancelled.id
