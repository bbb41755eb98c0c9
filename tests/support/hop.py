"""A receiver that syncs at once, and a link to it."""

import time
from collections.abc import Callable

import zmq

from chiplog_schemas.protocol.actions import DataReceived, Reply
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.protocol.sender import SenderState
from chiplog_schemas.storage.record import Kind, Record, encode, scan_records
from chiplog_schemas.transport.dealer import DeliveryClient, LogSlice

SENDER = b"sender of a test"


class Log:
    """Ten records; any call may be refused."""

    def __init__(self) -> None:
        self.first_number = 0
        self.position = 0
        self.acked = 0
        self.refused: set[str] = set()
        self.n_asked = 0

    def _ask(self, what: str) -> None:
        self.n_asked += 1
        if what in self.refused:
            raise OSError(5, "Input/output error", f"{what} of a segment")

    def seek(self, number: int) -> None:
        self._ask("seek")
        self.position = number

    def read(self, max_bytes: int) -> LogSlice | None:
        self._ask("read")
        if self.position == 10:
            return None
        self.position += 1
        return LogSlice(self.position - 1, self.position - 1, encode(Kind.BLOCK, self.position - 1, b"x"))

    def acknowledged(self, next_number: int) -> None:
        self._ask("acknowledged")
        self.acked = max(self.acked, next_number)


class Hop:
    """A receiver that syncs at once, and a link to it. Time is the test's."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(address)
        self.receiver = ReceiverProtocol({})
        self.taken: list[int] = []
        self.log = Log()
        self.told: list[tuple[SenderState, str]] = []
        self.link = DeliveryClient(
            self.context, address, SENDER, {}, self.log, on_change=lambda state, why: self.told.append((state, why))
        )
        self.now = 0.0

    def turn(self) -> None:
        """Let the link and the receiver handle what there is, a twentieth of a second later."""
        self.now += 0.05
        self.link.poll(self.now)
        time.sleep(0.001)
        while self.router.poll(0):
            routing, *frames = self.router.recv_multipart()
            actions = self.receiver.receive(routing, frames, self.now)
            for action in actions:
                match action:
                    case Reply():
                        self.router.send_multipart([action.routing, *action.frames])
                    case DataReceived(sender, _, last, payload):
                        self.taken += [item.number for item in scan_records(payload) if isinstance(item, Record)]
                        actions += self.receiver.acknowledge(sender, last + 1)

    def set_refused(self, n_events: int) -> None:
        """Have the receiver keep events of the sender without applying them."""
        for action in self.receiver.set_refused({SENDER: n_events} if n_events else {}, set()):
            assert isinstance(action, Reply)
            self.router.send_multipart([action.routing, *action.frames])

    def close(self) -> None:
        """Close the link and the receiver."""
        self.log.refused.clear()
        self.link.close()
        self.router.close(0)
        self.context.term()

    def until(self, holds: Callable[[], bool], turns: int = 20_000) -> None:
        """Take turns until something is true."""
        for _ in range(turns):
            if holds():
                return
            self.turn()
        raise AssertionError(f"not after {turns} turns; told {self.told[-4:]}")
