"""The connection to a collector, against a socket of which the test decides when and what it answers."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import zmq

from chiplog.query import connection as remote_module
from chiplog.query.client import connect
from chiplog_schemas.query import query_messages
from tests.support.waiting import WAIT_S


def test_pings_that_piled_up_while_there_was_no_collector_cost_one_repetition(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_module, "HEARTBEAT_INTERVAL_S", 0.03)
    monkeypatch.setattr(remote_module, "PEER_SILENT_S", WAIT_S)
    table = pa.table({"a": [1]})
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        data = sink.getvalue().to_pybytes()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket, ThreadPoolExecutor(1) as pool:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(1000 * WAIT_S))
        socket.bind(f"ipc://{tmp_path}/query.sock")

        def receive() -> query_messages.QueryMessage:
            nonlocal peer
            peer, *frames = socket.recv_multipart()
            return query_messages.parse(frames)

        def answer(frames) -> None:
            socket.send_multipart([peer, *frames])

        peer = b""
        connected = pool.submit(connect, f"ipc://{tmp_path}/query.sock")
        answer(query_messages.pong(receive().id, {"versions": [1, 1], "waiting": False}))
        with connected.result() as client:
            asked = pool.submit(client.sql, "SELECT 1 AS a")
            first = receive()
            pings = [receive() for _ in range(2 * remote_module.ASK_AGAIN_MAX)]
            assert {(ping.kind, ping.id) for ping in pings} == {(query_messages.QueryMessageKind.PING, first.id)}
            for ping in pings:
                answer(query_messages.pong(ping.id, {"waiting": False}))
            seen = [receive() for _ in range(10)]
            repeated = [question for question in seen if question.kind == query_messages.QueryMessageKind.ASK]
            assert len(repeated) == 1
            answer(query_messages.result(repeated[0].id, 1, data))
            assert asked.result().rows() == [{"a": 1}]
