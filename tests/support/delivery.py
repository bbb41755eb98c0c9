"""The two ends of delivery, connected by hand."""

from typing import Any

from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Connect, Reply, Send, SessionOpened
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.protocol.sender import SenderProtocol, SenderState

CREDIT = 400
NAMES = (b"a" * 16, b"b" * 16)


class Nonces:
    """Fresh session nonces, the same in every repetition."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        return self.count.to_bytes(8, "big")


def open_sender(first: int = 0) -> tuple[SenderProtocol, bytes]:
    machine = SenderProtocol(NAMES[0], {}, Nonces(), lambda: 1.0)
    (connect,) = machine.tick(0.0, first)
    assert isinstance(connect, Connect)
    return machine, messages.parse(connect.frames).session  # type: ignore[arg-type]


def open_pair(receiver: ReceiverProtocol, first: int = 0) -> tuple[SenderProtocol, bytes]:
    machine, session = open_sender(first)
    reply, greeted = receiver.receive(b"r", messages.hello(session, NAMES[0], first, {}), 0.0)
    assert isinstance(greeted, SessionOpened)
    assert isinstance(reply, Reply)
    machine.receive(reply.frames, 0.0)  # type: ignore[arg-type]
    assert machine.state is SenderState.OPEN
    return machine, session


def kinds(actions: list[Any]) -> list[int]:
    return [messages.parse(action.frames).kind for action in actions if isinstance(action, Reply | Send)]
