"""Which keys a client takes for which address, and what it says of a handshake that failed."""

import shutil
import struct
from pathlib import Path

import pytest
import zmq

from chiplog_schemas.addresses import AddressError
from chiplog_schemas.security.curve import ClientCurve, client_curve, parse_handshake_failure
from chiplog_schemas.security.key_files import Keys, KeysError, PublicKey, write_pair, write_toml
from chiplog_schemas.security.permissions import Role
from tests.support.keys import new_pair


def test_unix_sockets_and_a_loopback_without_keys_go_plain(keys: Keys) -> None:
    write_pair(keys.directory, new_pair())
    for address in ("ipc:///tmp/a.sock", "tcp://127.0.0.1:4100", "tcp://[::1]:4100", "tcp://localhost:4100"):
        assert client_curve(keys, address, Role.AGENT, Role.COLLECTOR) is None


@pytest.mark.parametrize("address", ["tcp://10.1.2.3:4100", "tcp://node-a:4100", "tcp://[fe80::1]:4100"])
def test_another_host_is_refused_without_keys_in_one_line_with_the_remedy(keys: Keys, address: str) -> None:
    with pytest.raises(AddressError, match="chiplog keys new agent") as caught:
        client_curve(keys, address, Role.AGENT, Role.COLLECTOR)
    assert address in str(caught.value)
    assert "collector.pub" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_with_a_servers_key_every_tcp_address_is_curve(keys: Keys) -> None:
    server, own = new_pair(Role.COLLECTOR, "center"), new_pair()
    write_toml(keys.directory / "collector.pub", {"name": "center", "role": "collector", "public": server.public})
    for address in ("tcp://127.0.0.1:4100", "tcp://node-a:4100"):
        with pytest.raises(KeysError, match="chiplog keys new agent"):
            client_curve(keys, address, Role.AGENT, Role.COLLECTOR)
    write_pair(keys.directory, own)
    for address in ("tcp://127.0.0.1:4100", "tcp://node-a:4100"):
        curve = client_curve(keys, address, Role.AGENT, Role.COLLECTOR)
        expected = PublicKey("center", "collector", server.public)
        assert curve == ClientCurve("node1", own.public, own.secret, "agent", expected, keys.directory)


def test_the_key_of_another_role_is_no_servers(keys: Keys) -> None:
    write_pair(keys.directory, pair := new_pair(Role.READER))
    shutil.copy(keys.directory / "reader.pub", keys.directory / "collector.pub")
    with pytest.raises(KeysError, match="key of a reader"):
        client_curve(keys, "tcp://127.0.0.1:1", Role.READER, Role.COLLECTOR)
    assert pair.public in (keys.directory / "collector.pub").read_text()


def event(kind: int, value: int = 0) -> list[bytes]:
    return [struct.pack("=Hi", kind, value), b"tcp://node-a:4100"]


OWN = ClientCurve("node1", "", "", "agent", PublicKey("center", "collector", ""), Path("/keys"))
MISMATCH = event(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)


@pytest.mark.parametrize(
    ("message", "curve", "words", "is_final"),
    [
        (event(zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400), OWN, "run `chiplog keys allow` there with /keys/agent.pub", True),
        (MISMATCH, OWN, "nothing is sent in plain text", True),
        (MISMATCH, None, "this host does not have its public key", True),
        (event(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 104), OWN, "another key than /keys/collector.pub", False),
        (event(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 104), None, "no process listens behind it", False),
    ],
)
def test_a_handshake_that_failed_is_told_in_one_line_with_the_address_and_the_remedy(
    message: list[bytes], curve: ClientCurve | None, words: str, is_final: bool
) -> None:
    failure = parse_handshake_failure(message, "tcp://node-a:4100", curve)
    assert failure is not None and failure.is_final is is_final
    assert words in failure.reason and "tcp://node-a:4100" in failure.reason and "\n" not in failure.reason


@pytest.mark.parametrize("message", [[], [b""], [b"\0" * 5], event(zmq.EVENT_HANDSHAKE_SUCCEEDED)])
def test_other_events_are_no_failure(message: list[bytes]) -> None:
    assert parse_handshake_failure(message, "tcp://node-a:4100", OWN) is None
