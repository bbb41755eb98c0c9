"""The socket of a query service: a real ROUTER at a Unix socket."""

import os
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import zmq

from chiplog_collector.query.query_socket import QuerySocket
from tests.support.waiting import WAIT_S


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as found:
        yield found


@pytest.fixture
def bound(tmp_path, context) -> Iterator[QuerySocket]:
    socket = QuerySocket(context, f"ipc://{tmp_path}/query.sock", None, "query", 10, threading.Event(), Counter())
    socket.bind()
    yield socket
    socket.close()


def exchange(context: "zmq.Context[zmq.Socket[bytes]]", bound: QuerySocket, path: str, size: int) -> list[bytes]:
    with context.socket(zmq.DEALER) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.connect(f"ipc://{path}")
        client.send(b"question")
        assert bound.socket.poll(int(1000 * WAIT_S))
        peer, question = bound.socket.recv_multipart()
        assert question == b"question"
        bound.send(peer, [b"head", bytes(size)])
        assert client.poll(int(1000 * WAIT_S))
        return client.recv_multipart()


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_an_answer_reaches_its_peer_and_is_counted(context, bound, tmp_path, size):
    assert exchange(context, bound, f"{tmp_path}/query.sock", size) == [b"head", bytes(size)]
    assert bound._counts == {"answered": 1}


def test_an_answer_to_an_unknown_peer_is_counted(bound):
    bound.send(b"gone", [b"answer"])
    assert (bound._counts, bound.unsent_bytes()) == ({"undeliverable": 1}, 0)


def test_a_socket_whose_file_was_removed_is_bound_again(context, bound, tmp_path):
    path = f"{tmp_path}/query.sock"
    bound.restore_file()
    os.unlink(path)
    bound.restore_file()
    assert exchange(context, bound, path, 10)[0] == b"head"


def test_a_closed_service_stops_waiting_for_its_address(bound, context):
    closing = threading.Event()
    closing.set()
    second = QuerySocket(context, bound._address, None, "query", 10, closing, Counter())
    with pytest.raises(OSError, match="closed before it was bound"):
        second.bind()
    second.close()
