"""Addresses of daemons and stores as users write them, validated before use. An error is one line with the remedy."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from chiplog_schemas.paths import SOCKET_PATH_BYTES_MAX, ensure_private_dir

_STORE_SCHEMES = ("file", "s3", "gs", "abfss")  # of the addresses of stores
STORE = "CHIPLOG_STORE"
_IPC = "ipc://"
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+(?:%[\w.-]+)?\]|[\w.-]*)")  # of HOST:PORT
_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+(?:%[\w.-]+)?\]|[^:/\[\]]+):(\d{1,5})")


class AddressError(ValueError):
    """An address that cannot be used. The text names it and the remedy."""


def check_connect(address: str) -> str:
    """Return an address to connect to unchanged, or raise AddressError."""
    if is_ipc(address):
        path = address.removeprefix(_IPC)
        if not path.startswith("/") or len(path.encode()) > SOCKET_PATH_BYTES_MAX:
            raise AddressError(f"{address!r}: a socket path is absolute and has at most {SOCKET_PATH_BYTES_MAX} bytes")
    else:
        parse_tcp(address)
    return address


def is_store(address: str) -> bool:
    """Return True if an address is one of a store."""
    return address.partition("://")[0] in _STORE_SCHEMES


def check_store(address: str) -> str:
    """Return the address of a store without a final slash, or raise AddressError, also if its server is no address."""
    return _check_endpoint(_check_store(address))


def _check_store(address: str) -> str:
    scheme, _, rest = address.partition("://")
    if not is_store(address) or not rest or (scheme == "file" and not rest.startswith("/")):
        known = ", ".join(f"{name}://…" for name in _STORE_SCHEMES)
        raise AddressError(f"{address} is no address of a store; give file:///DIRECTORY or another of {known}")
    return address.rstrip("/")


def store_of(environ: Mapping[str, str]) -> str:
    """Return the store that CHIPLOG_STORE names; empty if it is unset. Raises AddressError."""
    url = environ.get(STORE, "")
    try:
        checked = _check_store(url) if url else ""
    except AddressError as error:
        raise AddressError(f"{STORE}={error}") from None
    return _check_endpoint(checked)


def _check_endpoint(address: str) -> str:
    """Return the address. Raises AddressError for a server of S3 with which every request or the process would fail."""
    url = os.environ.get("AWS_ENDPOINT_URL", "") if address.startswith("s3:") else ""
    if url and not url.startswith(("http://", "https://")):
        raise AddressError(f"AWS_ENDPOINT_URL={url} has no scheme; write https://HOST or http://HOST:PORT")
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "on", "yes", "y")
    if url.startswith("http://") and not allowed:
        raise AddressError(f"AWS_ENDPOINT_URL={url} is not encrypted; to use it, set AWS_ALLOW_HTTP=true")
    return address


def check_store_exists(address: str) -> None:
    """Raise AddressError if the address of a store names no directory. A bucket is not asked."""
    from urllib.parse import unquote, urlsplit  # ranks import this module, and never need it

    if address.startswith("file:") and not os.path.isdir(path := unquote(urlsplit(address).path)):
        raise AddressError(f"{path} is no directory, so no collector publishes to {address}; see chiplog store init")


def check_bind(address: str, *, keyed: bool = False, role: str = "collector") -> str:
    """Return an address to listen on unchanged, or raise AddressError. An address beyond loopback needs keys.

    keyed: whether this host has the key of the role that it serves in.
    """
    if is_ipc(address):
        return check_connect(address)
    parse_tcp(address)
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
    host = parse_tcp(address)[0]
    if host == "localhost":
        return True
    import ipaddress  # imported here: a rank with a Unix socket never needs it

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_ipv6(address: str) -> bool:
    """Return True for an IPv6 address in brackets.

    ZeroMQ's IPv6 option is for these only: it makes names resolve to IPv6.
    """
    return address.startswith("tcp://[")


def port_after(address: str) -> str:
    """Return the TCP address one port higher.

    By convention the collector answers SQL next to the port that receives events.
    """
    host, port = parse_tcp(address)
    return f"tcp://{host}:{port + 1}"


def query_address_of(collector: str) -> str:
    """Return where the collector at an address answers SQL: by convention next to the address for agents.

    tcp://host:port answers at the next port, ipc://…/collector.sock at query.sock in the same directory, any other
    ipc path at that path with the suffix `.query`. Raises AddressError.
    """
    if is_ipc(collector) and collector != _IPC:
        directory, slash, name = collector.rpartition("/")
        if name == "collector.sock":
            return f"{directory}{slash}query.sock"
        return collector if name == "query.sock" or name.endswith(".query") else f"{collector}.query"
    try:
        return port_after(collector)
    except AddressError:
        message = f"collector address {collector!r} is unknown; write tcp://HOST:PORT or ipc:///PATH"
        message += ", or a store as file:///DIRECTORY or s3://BUCKET/FOLDER"
        raise AddressError(message) from None


def parse_host_port(option: str, text: str, example: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `PORT`, given to a command's option. Raises AddressError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"{option} {text} has no port from 0 to 65535; give PORT or HOST:PORT, such as {example}")
    if not _HOST.fullmatch(host):
        raise AddressError(
            f"{option} {text} has no host's name or address before the port; give HOST:PORT, such as 127.0.0.1:{port}, "
            f"or 0.0.0.0:{port} for all addresses of this host"
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def is_ipc(address: str) -> bool:
    """Return True for the address of a Unix socket."""
    return address.startswith(_IPC)


def ipc_path(address: str) -> Path:
    """Return the file of a Unix socket's address."""
    return Path(address.removeprefix(_IPC))


def prepare_ipc(address: str) -> None:
    """Create the private directory of a socket and remove the socket of a dead daemon. The caller holds the lock."""
    if not is_ipc(address):
        return
    path = ipc_path(address)
    try:
        ensure_private_dir(path.parent)
    except PermissionError as error:
        raise AddressError(f"{address!r} cannot be used: {error}") from error
    path.unlink(missing_ok=True)


def parse_tcp(address: str) -> tuple[str, int]:
    """Return the host, an IPv6 address in brackets, and the port of a TCP address. Raises AddressError."""
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
