"""A client's socket on the wire, without any code of the product."""

from typing import Any

import zmq

from tests.support.waiting import WAIT_MS


class DealerByHand:
    """A connected socket with a context of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = self.connect()

    def connect(self) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self.address)
        return socket

    def frames(self) -> list[bytes]:
        """Wait for a message."""
        assert self.socket.poll(WAIT_MS), "no answer"
        return self.socket.recv_multipart()

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()
