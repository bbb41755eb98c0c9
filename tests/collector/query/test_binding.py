"""The Unix socket for SQL: private, never taken from a running listener, and free again after a killed one."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from chiplog_collector.query.binding import bind_ipc, check_free, listen_ipc


@pytest.fixture
def router() -> Iterator["zmq.Socket[bytes]"]:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    yield router
    router.close(0)
    context.term()


def test_the_socket_is_for_its_user_only(router: "zmq.Socket[bytes]", tmp_path: Path) -> None:
    bind_ipc(router, f"ipc://{tmp_path}/sql")
    assert stat.S_IMODE(os.stat(tmp_path / "sql").st_mode) == 0o600


def test_a_living_listener_keeps_its_path(router: "zmq.Socket[bytes]", tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sql"))
        listener.listen()
        with pytest.raises(OSError, match="is in use"):
            bind_ipc(router, f"ipc://{tmp_path}/sql")


def test_the_path_of_one_that_was_killed_is_taken(router: "zmq.Socket[bytes]", tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sql"))
    bind_ipc(router, f"ipc://{tmp_path}/sql")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "sql"))


def test_a_socket_that_waits_for_clients_is_private_and_keeps_its_path(tmp_path: Path) -> None:
    with listen_ipc(f"ipc://{tmp_path}/sql") as listener:
        assert stat.S_IMODE(os.stat(tmp_path / "sql").st_mode) == 0o600
        with pytest.raises(OSError, match="is in use"):
            listen_ipc(f"ipc://{tmp_path}/sql")
        listener.close()
        listen_ipc(f"ipc://{tmp_path}/sql").close()


def test_an_address_that_cannot_be_bound_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for address in (f"tcp://127.0.0.1:{port}", "tcp://192.0.2.1:7001", f"ipc://{tmp_path}/missing/sql"):
            with pytest.raises(OSError, match=f"^query address {address} cannot be bound: "):
                check_free(address)
    for address in (f"tcp://127.0.0.1:{port}", f"ipc://{tmp_path}/sql"):
        check_free(address)
        check_free(address)
