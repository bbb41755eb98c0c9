"""A DEALER over a plain socket, against libzmq's ROUTER, and its reaction to peers that are not ZeroMQ."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from chiplog_schemas.transport.zmtp import FRAME_BYTES_MAX, Dealer
from tests.support.ports import free_ports
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_MS, wait_until


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


@pytest.fixture
def router(address: str) -> Iterator[zmq.Socket]:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(address)
    yield router
    router.close(0)
    context.term()


def receive(dealer: Dealer) -> list[bytes]:
    found: list[list[bytes]] = []

    def look() -> bool:
        message = dealer.receive()
        if message is not None:
            found.append(message)
        return bool(found)

    wait_until(look, "a message comes")
    return found[0]


@proves("send-after-handshake", "no message is sent before the peer is ready", part="and self._is_ready and", new="and")
@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_messages_of_any_size_pass_in_both_directions_once_the_peer_listens(address: str, scheme: str) -> None:
    if scheme == "tcp":
        address = f"tcp://127.0.0.1:{free_ports(1)}"
    dealer = Dealer(address)
    sent = [b"", b"x", b"y" * 255, b"z" * 256, os.urandom(3_000_000)]
    dealer.send([memoryview(frame) for frame in sent])
    assert dealer.receive() is None, "no process listens yet"
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    try:
        router.bind(address)
        got: list[bytes] = []

        def look() -> bool:
            assert dealer.receive() is None
            dealer.wait(0.01)
            if router.poll(0):
                got.extend(router.recv_multipart())
            return bool(got)

        wait_until(look, "the router has it")
        assert got[1:] == sent
        for frames in ([b"a"], [b"", b"b" * 255, b"c" * 256], [b"d" * FRAME_BYTES_MAX]):
            router.send_multipart([got[0], *frames])
            assert receive(dealer) == frames
    finally:
        dealer.close(0)
        router.close(0)
        context.term()


def test_what_is_queued_is_sent_before_the_close(address: str, router: zmq.Socket) -> None:
    dealer = Dealer(address)
    dealer.send([b"hello"])
    wait_until(lambda: dealer.receive() is None and not dealer.is_blocked and dealer._is_ready, "it is connected")
    for _ in range(10):
        dealer.send([b"x" * 1_000_000])
    dealer.close(30.0)
    sizes = [len(router.recv_multipart()[1]) for _ in range(11) if router.poll(WAIT_MS)]
    assert sizes == [5, *[1_000_000] * 10]


def test_a_peer_that_closes_is_an_error_at_once(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address.removeprefix("ipc://"))
        listening.listen()
        dealer = Dealer(address)
        assert dealer.receive() is None
        listening.accept()[0].close()
        with pytest.raises(OSError):
            for _ in range(100):
                dealer.receive()
                time.sleep(0.01)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n".ljust(64),
        (b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE").ljust(64, b"\0"),
        (b"\xff" + bytes(8) + b"\x7f\x03\x00NULL").ljust(64, b"\0") + b"\x02" + (1 << 40).to_bytes(8, "big"),
        (b"\xff" + bytes(8) + b"\x7f\x03\x00NULL").ljust(64, b"\0") + b"\x04\x08\x05ERROR\x01x",
    ],
)
def test_a_peer_that_says_something_else_is_refused(address: str, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address.removeprefix("ipc://"))
        listening.listen()
        dealer = Dealer(address)
        dealer.receive()
        accepted, _ = listening.accept()
        with accepted:
            accepted.sendall(said)
            with pytest.raises(OSError, match=r"ZeroMQ|limit|refused"):
                for _ in range(100):
                    dealer.receive()
                    time.sleep(0.01)


@proves("reused-descriptor-unused", "a number that was given to another file is not used")
def test_a_descriptor_that_other_code_closed_costs_the_connection_and_no_file(
    address: str, router: zmq.Socket, tmp_path: Path
) -> None:
    dealer = Dealer(address)
    dealer.send([b"hello"])
    wait_until(lambda: dealer.receive() is None and dealer._is_ready, "it is connected")
    assert dealer._owned is not None
    number = dealer._owned.number
    ours, theirs = socket.socketpair()
    os.dup2(ours.fileno(), number)  # as the training's next socket may get the number
    with pytest.raises(OSError, match="closed by other code"):
        for _ in range(3):
            dealer.send([b"not for them"])
            dealer.receive()
    dealer.close(0)
    os.fstat(number)
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(100)
    os.close(number)
    ours.close()
    theirs.close()
