"""Addresses are checked before a socket sees them; a socket's directory is private and its dead file removed."""

import os
from pathlib import Path

import pytest

from chiplog_schemas.addresses import AddressError, check_bind, check_connect, port_after, prepare_ipc
from chiplog_schemas.paths import SOCKET_PATH_BYTES_MAX


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:5555", "tcp://localhost:1", "tcp://[::1]:5555", "ipc:///tmp/a.sock"]
)
def test_loopback_and_sockets_may_be_bound_and_connected_to(address: str) -> None:
    assert check_bind(address) == address
    assert check_connect(address) == address


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:5555", "tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://node-a:5555"])
def test_what_other_hosts_can_reach_is_not_bound_without_keys(address: str) -> None:
    with pytest.raises(AddressError, match="CURVE"):
        check_bind(address)
    assert check_connect(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "5555",
        "tcp://host",
        "tcp://host:0",
        "tcp://host:65535",
        "tcp://host:99999",
        "tcp://:5555",
        "udp://h:1",
        "tcp://h:1/x",
        "ipc://relative.sock",
        "ipc:///" + "x" * SOCKET_PATH_BYTES_MAX,
    ],
)
def test_a_bad_address_is_named_in_one_line(address: str) -> None:
    for check in (check_bind, check_connect):
        with pytest.raises(AddressError) as caught:
            check(address)
        assert repr(address) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_sql_is_answered_at_the_next_port() -> None:
    assert port_after("tcp://127.0.0.1:5555") == "tcp://127.0.0.1:5556"


def test_a_socket_gets_a_private_directory_and_a_dead_one_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    prepare_ipc(f"ipc://{path}")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.touch()
    prepare_ipc(f"ipc://{path}")
    assert not path.exists()
    prepare_ipc("tcp://127.0.0.1:5555")


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.chmod(tmp_path / "run", 0o777)
    with pytest.raises(AddressError, match="chmod go-w"):
        prepare_ipc(f"ipc://{tmp_path}/run/agent.sock")
