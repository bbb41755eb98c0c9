"""The client's end of a TCP connection: which key to present, which server to expect, why a handshake failed."""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import zmq

from chiplog_schemas.addresses import AddressError, is_loopback
from chiplog_schemas.security.key_files import Keys, KeysError, PublicKey
from chiplog_schemas.security.permissions import Role

HANDSHAKE_MS = 5_000  # of CURVE and ZAP together: a peer that hangs in it occupies a socket
HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
)
_EVENT = struct.Struct("=Hi")  # first frame of a monitor's message: event, value


@dataclass(frozen=True, slots=True)
class ClientCurve:
    """What a client presents to one server: this host's secret key in a role, and the server's public key."""

    name: str
    public: str
    secret: str
    role: str
    server: PublicKey
    directory: Path

    def configure(self, socket: "zmq.Socket[bytes]") -> None:
        """Make a socket use this key and accept only that server. Call it before connecting."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server.public.encode())
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)


def client_curve(keys: Keys, address: str, role: Role, server: Role) -> ClientCurve | None:
    """Return the keys for a connection from a role to a server; None for one without keys: ipc, or plain loopback.

    A loopback connection has no keys if the server's key is absent: an ssh forward, or a daemon without keys.
    Raises AddressError or KeysError, both one line, when keys are needed and absent.
    """
    if not address.startswith("tcp://"):
        return None
    whose = keys.server(server)
    if whose is None:
        if is_loopback(address):  # safeguard: no-foreign-connect-without-keys
            return None
        raise AddressError(
            f"{address!r} is on another host, which needs CURVE keys, and {keys.directory}/{server}.pub is not there; "
            f"make a key with `chiplog keys new {role}` and copy the {server}'s {server}.pub there"
        )
    pair = keys.pair(role)
    if pair is None:
        raise KeysError(
            f"{keys.directory}/{role}.key is not there, and {address!r} requires one ({server}.pub exists); "
            f"make it with `chiplog keys new {role}`"
        )
    return ClientCurve(pair.name, pair.public, pair.secret, str(role), whose, keys.directory)


@dataclass(frozen=True, slots=True)
class HandshakeFailure:
    """A handshake that failed. is_final: a retry would fail too. Otherwise the other end may only be starting."""

    reason: str
    is_final: bool


def parse_handshake_failure(message: list[bytes], address: str, curve: ClientCurve | None) -> HandshakeFailure | None:
    """Return why a handshake failed, in one line, from a monitor's message; None for another event."""
    try:
        event, value = _EVENT.unpack_from(message[0])
    except (struct.error, IndexError):
        return None
    if not event & HANDSHAKE_FAILED:
        return None
    is_final = event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    other_mechanism = is_final and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
    if curve is None and other_mechanism:
        remedy = "copy that server's .pub into CHIPLOG_KEYS (default CHIPLOG_DIR/keys), see chiplog keys --help"
        return HandshakeFailure(f"{address} requires keys, and this host does not have its public key; {remedy}", True)
    if curve is None:
        about = "no process listens behind it, or it requires keys (chiplog keys --help)"
        return HandshakeFailure(f"{address} closed the connection before it answered: {about}", is_final)
    who = f"key {curve.name!r} (role {curve.role})"
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH and value == 400:
        public = f"{curve.directory}/{curve.role}.pub"
        return HandshakeFailure(
            f"{who} is not allowed at {address}; run `chiplog keys allow` there with {public}", True
        )
    if other_mechanism:
        about = f"{curve.directory} has a key for it; nothing is sent in plain text"
        return HandshakeFailure(f"{address} speaks without keys, and {about}", True)
    # safeguard: other-collector-named
    about = f"it has another key than {curve.directory}/{curve.server.role}.pub, or none, or admits no client right now"
    return HandshakeFailure(
        f"{address} broke the handshake with {who} off ({_name_of(event, value)}): {about}", is_final
    )


def _name_of(event: int, value: int) -> str:
    return os.strerror(value) if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL else f"event {event:#x}, {value:#x}"
