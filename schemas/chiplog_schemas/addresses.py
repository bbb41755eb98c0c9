"""ZeroMQ addresses as users write them: checked before a socket sees them, with one line that says what is wrong."""

import re
from pathlib import Path

from chiplog_schemas.paths import SOCKET_PATH_BYTES_MAX, ensure_private_dir

_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^:/\[\]]+):(\d{1,5})")


class AddressError(ValueError):
    """An address that cannot be used; the text names it and the remedy."""


def check_connect(address: str) -> str:
    """Return an address to connect to as it is, or raise AddressError."""
    if address.startswith("ipc://"):
        path = address[len("ipc://") :]
        if not path.startswith("/") or len(path.encode()) > SOCKET_PATH_BYTES_MAX:
            raise AddressError(f"{address!r}: a socket path is absolute and has at most {SOCKET_PATH_BYTES_MAX} bytes")
        return address
    _host_and_port(address)
    return address


def check_bind(address: str, *, keyed: bool = False, role: str = "collector") -> str:
    """Return an address to listen on as it is, or raise AddressError: beyond loopback it needs keys.

    keyed: whether this host has the key of the role that it is to serve in.
    """
    if address.startswith("ipc://"):
        return check_connect(address)
    _host_and_port(address)
    if not keyed and not is_loopback(address):
        raise AddressError(
            f"{address!r} is reachable from other hosts, which needs CURVE keys; make this host's with "
            f"`chiplog keys new {role}` and let others in with `chiplog keys allow`, or bind tcp://127.0.0.1:PORT"
        )
    return address


def is_loopback(address: str) -> bool:
    """Tell whether a TCP address can be reached from this host only. Raises AddressError when it is none."""
    return _is_loopback(_host_and_port(address)[0])


def is_ipv6(address: str) -> bool:
    """Return True for an IPv6 address in brackets. ZeroMQ's option is for these alone: with it names mean IPv6 only."""
    return address.startswith("tcp://[")


def port_after(address: str) -> str:
    """Return the TCP address one port higher: by convention SQL is answered next to where events are taken."""
    host, port = _host_and_port(address)
    return f"tcp://{host}:{port + 1}"


def ipc_path(address: str) -> Path:
    """Return the file of a Unix socket's address."""
    return Path(address.removeprefix("ipc://"))


def prepare_ipc(address: str) -> None:
    """Make the private directory of a socket and remove what a dead daemon left there. The caller holds the lock."""
    if not address.startswith("ipc://"):
        return
    path = ipc_path(address)
    try:
        ensure_private_dir(path.parent)
    except PermissionError as error:
        raise AddressError(f"{address!r} cannot be had: {error}") from error
    path.unlink(missing_ok=True)


def _host_and_port(address: str) -> tuple[str, int]:
    match = _TCP.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65535:
        raise AddressError(f"{address!r} is no address; write tcp://HOST:PORT or ipc:///path")
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
    import ipaddress  # here: a rank with a Unix socket never asks

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
