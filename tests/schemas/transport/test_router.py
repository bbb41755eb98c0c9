"""The socket of a receiving end: Unix sockets for this user, restored when removed, beside TCP; peers that leave."""

import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Reply
from chiplog_schemas.transport.router import RouterSocket
from tests.support.waiting import WAIT_MS, wait_until

HELLO = messages.hello(b"12345678", bytes(16), 0, {"node": "node1"})
WELCOME = messages.welcome(b"12345678", 0, 1)
Knock = Callable[[str], "zmq.Socket[bytes]"]


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(0)


@pytest.fixture
def knock(context: "zmq.Context[zmq.Socket[bytes]]") -> Iterator[Knock]:
    """Return what connects a client, which is closed at the end."""
    clients: list[zmq.Socket[bytes]] = []

    def knock(address: str) -> "zmq.Socket[bytes]":
        clients.append(client := context.socket(zmq.DEALER))
        client.connect(address)
        return client

    yield knock
    for client in clients:
        client.close(0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "a.sock"


@pytest.fixture
def door(context: "zmq.Context[zmq.Socket[bytes]]", path: Path) -> Iterator[RouterSocket]:
    door = RouterSocket(context, ["tcp://127.0.0.1:*", f"ipc://{path}"])
    yield door
    door.close(0)


def is_answered(door: RouterSocket, client: "zmq.Socket[bytes]") -> bool:
    client.send_multipart(HELLO)
    assert door.socket.poll(WAIT_MS), "no message"
    received = door.receive(time.monotonic())
    assert received is not None and received.frames == HELLO
    door.reply(Reply(received.routing, WELCOME, None), time.monotonic())
    return bool(client.poll(WAIT_MS)) and client.recv_multipart() == WELCOME


def test_a_unix_socket_is_of_its_user_alone_and_answers_like_tcp(knock: Knock, door: RouterSocket, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for address in (f"ipc://{path}", door.socket.getsockopt_string(zmq.LAST_ENDPOINT)):
        assert is_answered(door, knock(address)), address


def test_a_socket_whose_file_was_removed_takes_peers_again_and_keeps_those_it_has(
    knock: Knock, door: RouterSocket, path: Path
) -> None:
    before = knock(f"ipc://{path}")
    assert is_answered(door, before)
    path.unlink()
    door.check_files()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    after = knock(f"ipc://{path}")
    assert is_answered(door, after)
    assert is_answered(door, before)


def test_an_answer_to_a_peer_that_left_is_dropped(knock: Knock, door: RouterSocket, path: Path) -> None:
    client = knock(f"ipc://{path}")
    client.send_multipart(HELLO)
    wait_until(lambda: door.socket.poll(100), "a message")
    received = door.receive(time.monotonic())
    assert received is not None
    client.close(0)
    for _ in range(20):
        door.reply(Reply(received.routing, WELCOME, None), time.monotonic())
        time.sleep(0.005)
    door.reply(Reply(b"unknown", WELCOME, None), time.monotonic())


def test_an_address_that_cannot_be_bound_is_named(
    context: "zmq.Context[zmq.Socket[bytes]]", door: RouterSocket
) -> None:
    taken = door.socket.getsockopt_string(zmq.LAST_ENDPOINT)
    with pytest.raises(OSError, match=taken):
        RouterSocket(context, [taken])
