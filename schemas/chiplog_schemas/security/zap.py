"""Who may send to a daemon's TCP sockets: CURVE, a ZAP handler that reads the allow list, the sender of each message.

    authenticator = open_authenticator(context, keys, Role.COLLECTOR)    the handler runs before any socket is bound
    authenticator.secure(socket, "ingest")           after binds to ipc, before those to TCP
    receive(socket, authenticator, "ingest", now)    each message with its sender; a revoked key is refused

The handler fails closed: without it, or without its answer, libzmq rejects every connection (ZAP_ENFORCE_DOMAIN).
"""

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from chiplog_schemas.backoff import Backoff
from chiplog_schemas.security.curve import HANDSHAKE_MS
from chiplog_schemas.security.key_files import AllowList, Keys
from chiplog_schemas.security.permissions import DOMAINS, Permission, Role

ZAP_ADDRESS = "inproc://zeromq.zap.01"  # ZeroMQ RFC 27
_POLL_MS = 250  # how soon the handler notices that it must end
_PAUSE_MAX_S = 1.0  # between two starts of a handler that fails; no client can connect in this time
_IPC_PEER = "localhost:"  # what libzmq calls the peer of a Unix socket; then uid, gid and pid
_log = logging.getLogger("chiplog.gate")


@dataclass(frozen=True, slots=True)
class AuthenticatedClient:
    """The sender of a message: a process of this host through a Unix socket (`is_local`), or a key.

    permit: of that key; None when it is not allowed, or no longer. Then all its messages are rejected.
    name: of that key, or the key itself when it has no name here.
    """

    is_local: bool
    permit: Permission | None = None
    name: str = ""

    @property
    def refusal(self) -> str:
        """Return one line for a client that is refused."""
        return f"key {self.name} is no longer allowed here, or not for this; chiplog keys allow lets it in"

    @property
    def is_refused(self) -> bool:
        """Return True if all messages of this sender are rejected."""
        return not self.is_local and self.permit is None


LOCAL = AuthenticatedClient(True)


@dataclass(slots=True)
class ReceivedMessage:
    """One message of a ROUTER: the return address, the content, and the sender.

    peer_pid: of the process at the other end of a Unix socket, in this process's PID namespace; 0 if it is not visible
    from there; None for a peer that came over TCP.
    """

    routing: bytes
    frames: list[bytes]
    client: AuthenticatedClient
    peer_pid: int | None = None
    first: zmq.Frame | None = None  # knows its connection, see `PeerConnection`


@dataclass(frozen=True, slots=True)
class PeerConnection:
    """The connection that a message came through: libzmq's descriptor of it, and which socket that was then."""

    descriptor: int
    inode: tuple[int, int]

    @property
    def is_closed(self) -> bool:
        """Return True if libzmq has closed the connection: the peer has ended, or does not answer."""
        try:
            about = os.fstat(self.descriptor)
        except OSError:
            return True
        return (about.st_dev, about.st_ino) != self.inode  # safeguard: queries-of-gone-clients-skipped


def connection_of(message: ReceivedMessage) -> PeerConnection | None:
    """Return the connection that a message came through; None if libzmq does not know it, or it is closed already."""
    if message.first is None:
        return None
    try:
        descriptor = int(message.first.get(zmq.SRCFD))
        about = os.fstat(descriptor)
    except (zmq.ZMQError, OSError, ValueError):
        return None
    return PeerConnection(descriptor, (about.st_dev, about.st_ino))


class ZapAuthenticator:
    """Guards the TCP sockets of one ZeroMQ context. Its handler runs in a dedicated thread until `close`."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: Keys, secret: str) -> None:
        self.refused = 0  # handshakes and messages of keys that are not allowed
        self._context = context
        self._secret = secret.encode()
        self._allow_list = AllowList(keys.allowed)
        self._closing = threading.Event()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chiplog-gate", daemon=True)
        self._thread.start()
        self._bound.wait()

    def secure(self, socket: "zmq.Socket[bytes]", domain: str) -> None:
        """Admit only keys with the domain's role to the addresses that this socket binds from now on."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # safeguard: no-admission-without-handler
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)  # safeguard: handshake-bounded

    def identify_client(self, frame: zmq.Frame, domain: str, now: float) -> AuthenticatedClient:
        """Return who sent a frame, according to libzmq and the current allow list."""
        try:
            user = str(frame.get("User-Id"))
        except zmq.ZMQError:
            user = ""
        if user:
            permission = self.permission_for(user, domain, now)
            self.refused += permission is None
            return AuthenticatedClient(False, permission, self._allow_list.name_of(user) or user)
        # Without a key only a Unix socket is admitted. If libzmq ever admitted another peer, it is refused here.
        try:
            is_local = str(frame.get("Peer-Address")).startswith(_IPC_PEER)  # safeguard: tcp-peer-never-local
        except zmq.ZMQError:
            is_local = False
        self.refused += not is_local
        return LOCAL if is_local else AuthenticatedClient(False)

    def permission_for(self, public: str, domain: str, now: float) -> Permission | None:
        """Return the permit of a key that has the domain's role; None when it is not allowed there."""
        permit = self._allow_list.find(public, now)
        # safeguard: domain-needs-role
        return permit if permit is not None and DOMAINS.get(domain) in permit.roles else None

    def is_still_allowed(self, permit: Permission, domain: str, now: float) -> bool:
        """Return True if an admitted key may still receive an answer."""
        return self.permission_for(permit.public, domain, now) is not None  # safeguard: revoked-reader-gets-no-answer

    def close(self) -> None:
        """End the handler; from then on no client can connect. Call it before the context ends."""
        self._closing.set()
        self._thread.join()

    # -- the handler's thread --

    def _run(self) -> None:
        backoff = Backoff(max_s=_PAUSE_MAX_S)
        while not self._closing.is_set():
            started = time.monotonic()
            try:
                self._serve()
            except Exception as error:
                if time.monotonic() - started > 2 * _PAUSE_MAX_S:
                    backoff.reset()
                pause_s = backoff.next_s()
                _log.error("ZAP handler ended: %r; no client can connect until it runs again in %.2g s", error, pause_s)
                self._bound.set()  # a caller that waits may bind its socket: the authenticator fails closed
                self._closing.wait(pause_s)  # safeguard: zap-handler-restarts

    def _serve(self) -> None:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.REP)
        socket.setsockopt(zmq.LINGER, 0)
        with contextlib.closing(socket):
            socket.bind(ZAP_ADDRESS)
            self._bound.set()
            while not self._closing.is_set():
                if socket.poll(_POLL_MS):
                    socket.send_multipart(self._answer(socket.recv_multipart()))  # safeguard: failed-zap-admits-none

    def _answer(self, request: list[bytes]) -> list[bytes]:
        """Answer one request of RFC 27: version, ID, domain, address, routing ID, mechanism, key."""
        version, request_id, domain, _, _, mechanism, *credentials = request
        public = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and len(credentials) == 1 else ""
        name = domain.decode("utf-8", "replace")
        # safeguard: handshake-checks-key
        if public and self.permission_for(public, name, time.monotonic()) is not None:
            return [version, request_id, b"200", b"", public.encode(), b""]  # safeguard: permit-from-handshake
        self.refused += 1  # safeguard: handshake-leaves-nothing
        return [version, request_id, b"400", b"", b"", b""]


def receive(
    socket: "zmq.Socket[bytes]", authenticator: ZapAuthenticator | None, domain: str, now: float
) -> ReceivedMessage:
    """Return the next message of a ROUTER. Without authenticator all peers are local. Raises zmq.Again."""
    # Only the first frame is received as zmq.Frame: it is small, and libzmq attaches the key of the message to it.
    first = socket.recv(zmq.DONTWAIT, copy=False)
    client = LOCAL if authenticator is None else authenticator.identify_client(first, domain, now)
    return ReceivedMessage(first.bytes, socket.recv_multipart(zmq.DONTWAIT), client, _peer_pid(first), first)


def _peer_pid(frame: zmq.Frame) -> int | None:
    """Return the PID that libzmq got from the kernel (SO_PEERCRED) when the Unix socket's peer connected."""
    try:
        peer = str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return None
    pid = peer.rpartition(":")[2]
    return (int(pid) if pid.isdecimal() else 0) if peer.startswith(_IPC_PEER) else None


def open_authenticator(
    context: "zmq.Context[zmq.Socket[bytes]]", keys: Keys | None, role: Role
) -> ZapAuthenticator | None:
    """Return the authenticator of a daemon in a role, or None when this host has no key for it. Raises KeysError."""
    pair = keys.pair(role) if keys is not None else None
    return ZapAuthenticator(context, keys, pair.secret) if keys is not None and pair is not None else None
