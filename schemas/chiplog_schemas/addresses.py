"""ZeroMQ addresses as users write them, validated before they reach a socket. An error is one line with the remedy."""

import re
from pathlib import Path

from chiplog_schemas.paths import SOCKET_PATH_BYTES_MAX, ensure_private_dir

_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^:/\[\]]+):(\d{1,5})")


class AddressError(ValueError):
    """An address that cannot be used. The text names it and the remedy."""


def check_connect(address: str) -> str:
    """Return an address to connect to unchanged, or raise AddressError."""
    if address.startswith("ipc://"):
        path = address[len("ipc://") :]
        if not path.startswith("/") or len(path.encode()) > SOCKET_PATH_BYTES_MAX:
            raise AddressError(f"{address!r}: a socket path is absolute and has at most {SOCKET_PATH_BYTES_MAX} bytes")
        return address
    _host_and_port(address)
    return address


def check_bind(address: str, *, keyed: bool = False, role: str = "collector") -> str:
    """Return an address to listen on unchanged, or raise AddressError. An address beyond loopback needs keys.

    keyed: whether this host has the key of the role that it serves in.
    """
    if address.startswith("ipc://"):
        return check_connect(address)
    _host_and_port(address)
    if not keyed and not is_loopback(address):  # safeguard: no-foreign-bind-without-keys
        raise AddressError(
            f"{address!r} is reachable from other hosts, which needs CURVE keys; make this host's with "
            f"`chiplog keys new {role}` and let others in with `chiplog keys allow`, or bind tcp://127.0.0.1:PORT"
        )
    return address


def is_loopback(address: str) -> bool:
    """Return True if a TCP address can be reached from this host only.

    Raises AddressError if it is not a TCP address.
    """
    return _is_loopback(_host_and_port(address)[0])


def is_ipv6(address: str) -> bool:
    """Return True for an IPv6 address in brackets.

    ZeroMQ's IPv6 option is for these only: it makes names resolve to IPv6.
    """
    return address.startswith("tcp://[")


def port_after(address: str) -> str:
    """Return the TCP address one port higher.

    By convention the collector answers SQL next to the port that receives events.
    """
    host, port = _host_and_port(address)
    return f"tcp://{host}:{port + 1}"


def ipc_path(address: str) -> Path:
    """Return the file of a Unix socket's address."""
    return Path(address.removeprefix("ipc://"))


def prepare_ipc(address: str) -> None:
    """Create the private directory of a socket and remove the socket of a dead daemon. The caller holds the lock."""
    if not address.startswith("ipc://"):
        return
    path = ipc_path(address)
    try:
        ensure_private_dir(path.parent)
    except PermissionError as error:
        raise AddressError(f"{address!r} cannot be used: {error}") from error
    path.unlink(missing_ok=True)


def _host_and_port(address: str) -> tuple[str, int]:
    match = _TCP.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65535:
        raise AddressError(f"{address!r} is not an address; write tcp://HOST:PORT or ipc:///path")
    host = match[1]
    if host.startswith("["):
        import ipaddress

        try:
            ipaddress.IPv6Address(host.strip("[]"))
        except ValueError as error:
            raise AddressError(f"{address!r}: {error}; write an IPv6 address in brackets: tcp://[::1]:PORT") from error
    return host, int(match[2])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    import ipaddress  # imported here: a rank with a Unix socket never needs it

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
