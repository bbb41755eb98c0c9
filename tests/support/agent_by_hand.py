"""An agent's end of the wire, without the agent's code."""

import os

from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.messages import MessageKind
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as frame
from tests.support.dealer_by_hand import DealerByHand

SENDER = b"spool-of-agent-a"


class Agent(DealerByHand):
    """An agent's end of the wire, written by hand. It sends no heartbeats."""

    def __init__(self, address: str, sender: bytes = SENDER) -> None:
        super().__init__(address)
        self.sender = sender
        self.session = b""
        self._sent: list[tuple[int, int, bytes]] = []

    def hello(self, first: int = 0) -> messages.Message:
        """Open a session on a new socket and return the welcome."""
        self.socket.close()
        self.socket = self.connect()
        self.session = os.urandom(8)
        self.socket.send_multipart(messages.hello(self.session, self.sender, first, {"node": "a"}))
        message = self.receive()
        assert message.kind == MessageKind.WELCOME
        return message

    def send(self, first: int, *payloads: bytes, kind: int = Kind.BLOCK) -> None:
        data = b"".join(frame(kind, first + index, payload) for index, payload in enumerate(payloads))
        self.send_raw(first, first + len(payloads) - 1, data)

    def send_raw(self, first: int, last: int, data: bytes) -> None:
        self._sent.append((first, last, data))
        self.socket.send_multipart(messages.data(self.session, first, last, data))

    def receive(self) -> messages.Message:
        return messages.parse(self.frames())

    def acknowledged(self, number: int) -> messages.Message:
        """Wait until everything before a number is acknowledged."""
        while (message := self.receive()).kind != MessageKind.ACK or message.next < number:
            if message.kind == MessageKind.RESET:  # on a busy machine it was silent for too long
                self._send_again()
        return message

    def _send_again(self) -> None:
        """Begin another session, and send in it what the receiver does not have."""
        next_number = self.hello(self._sent[0][0]).next
        for first, last, data in self._sent:
            if last >= next_number:
                self.socket.send_multipart(messages.data(self.session, first, last, data))
