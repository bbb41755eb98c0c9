"""Whether a socket has a message: known without an exception."""

import zmq

from chiplog_schemas.transport.pending import has_message
from tests.support.waiting import wait_until


def test_message_is_pending_until_it_is_received() -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as reader, context.socket(zmq.PUSH) as writer:
        reader.bind("inproc://pending")
        writer.connect("inproc://pending")
        assert not has_message(reader)
        writer.send(b"one")
        wait_until(lambda: has_message(reader), "the message")
        assert reader.recv(zmq.DONTWAIT) == b"one"
        assert not has_message(reader)
