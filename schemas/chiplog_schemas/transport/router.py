"""The socket of a receiving end: one ROUTER, bound to all its addresses. Used by the agent and by the receiver.

Behind a gate it also knows whose key each message came with, and keeps from a revoked one what was meant for it.
"""

import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterable

import zmq

from chiplog_schemas.addresses import ipc_path, is_ipv6, prepare_ipc
from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S, PEER_SILENT_S
from chiplog_schemas.process.daemon import fds_nearly_exhausted
from chiplog_schemas.process.file_lock import file_id
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.delivery import Reply
from chiplog_schemas.security.zap import ReceivedMessage, ZapAuthenticator, receive

_SEND_HWM = 10_000  # acknowledgements: small, and a peer that takes none is gone
_RECEIVE_HWM = 32  # messages per peer: as many batches as credit has, and as many without bytes
_BACKLOG = 1_024  # a whole cluster reconnects at once
_KEEPALIVE_IDLE_S = int(PEER_SILENT_S)  # a peer whose host vanished says nothing: the kernel asks after this, …
_KEEPALIVE_INTERVAL_S = int(HEARTBEAT_INTERVAL_S)
_KEEPALIVE_COUNT = 5  # … so often, and closes; else its connection would be kept for ever
_UNBOUND_S = _OPEN_S = (
    5.0  # in turns while they are short: in one those of this host get in, in the other those with keys
)
_SAID_AGAIN_S = 60.0  # a crowd that is away for so long and comes again is news
_UNANSWERED_MS = int(2000 * PEER_SILENT_S)  # the same where it was sent something, and its kernel answers nothing

_log = logging.getLogger("chiplog.door")


class RouterSocket:
    """A ROUTER and the gate before its TCP addresses; without keys there is none. Owned by one thread.

    Raises OSError, naming the address that cannot be bound.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        addresses: Iterable[str],
        gate: ZapAuthenticator | None = None,
        domain: str = "",
    ) -> None:
        self._gate = gate
        self._domain = domain
        guard = (lambda socket: gate.secure(socket, domain)) if gate is not None else None
        addresses = list(addresses)
        self.socket = bind_router(context, addresses, guard)
        self._files = {address: file_id(ipc_path(address)) for address in addresses if not _is_tcp(address)}
        self._shutter = TcpListenerThrottle(self.socket, addresses)

    def receive(self, now: float) -> ReceivedMessage | None:
        """Return the next message; None in place of one that does not count. Raises zmq.Again when there is none.

        A key that was revoked since it connected is told so and counted by the gate.
        """
        received = receive(self.socket, self._gate, self._domain, now)
        if not received.visitor.is_refused:
            return received
        with contextlib.suppress(messages.WireError):
            session = messages.parse(received.frames).session
            self._send([received.routing, *messages.reset(session, received.visitor.refusal)])
        return None

    def reply(self, reply: Reply, now: float) -> None:
        """Send an answer, unless its key was revoked meanwhile or the peer left: it will ask again."""
        permit = reply.permit
        if permit is None or (self._gate is not None and self._gate.is_still_allowed(permit, self._domain, now)):
            self._send([reply.routing, *reply.frames])

    def throttle_listeners(self, now: float) -> None:
        """Keep strangers from taking all descriptors. To be called in every turn of a loop; see Shutter."""
        self._shutter.tick(now)

    def mind_files(self) -> None:
        """Listen again at Unix sockets whose files were removed, on the same ROUTER: nobody who is connected notices.

        The listener before stays, which costs a descriptor. Raises OSError; to be called again then.
        """
        for address, before in self._files.items():
            if file_id(ipc_path(address)) != before and not self.socket.closed:
                bind_unix(self.socket, address)
                self._files[address] = file_id(ipc_path(address))
                _log.warning("the socket %s was removed; it is there again", ipc_path(address))

    def close(self, linger_ms: int) -> None:
        """Unbind and close. May be called twice."""
        if not self.socket.closed:
            self.socket.close(linger_ms)

    def _send(self, frames: list[bytes | memoryview]) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self.socket.send_multipart(frames, zmq.DONTWAIT)


class TcpListenerThrottle:
    """Shuts a socket's TCP addresses for some seconds when descriptors run out. Owned by the socket's thread.

    libzmq takes in whoever connects before it asks for a key: strangers could hold every descriptor. Then no file can
    be opened, nobody of this host gets in, and when one tries, libzmq aborts the process: its Unix sockets do not
    expect that accept(2) says EMFILE. All who came over TCP are turned out; those with keys come again, and send what
    was not acknowledged.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", addresses: Iterable[str]) -> None:
        self._socket = socket
        self._tcp = [address for address in addresses if _is_tcp(address)]
        self._is_unbound = False
        self._next_change_s = 0.0  # when TCP may be shut or opened again
        self._shut_at = -math.inf

    def tick(self, now: float) -> None:
        """Shut or open what is due. To be called in every turn of a loop."""
        if not self._tcp or now < self._next_change_s or self._socket.closed:
            return
        try:
            if self._is_unbound:
                for address in self._tcp:
                    bind_any(self._socket, address)
            elif not fds_nearly_exhausted():
                return
            else:
                if now - self._shut_at >= _SAID_AGAIN_S:
                    _log.warning("descriptors are running out; %s is shut for %g s at a time", self._tcp, _UNBOUND_S)
                self._shut_at = now
                for address in self._tcp:
                    self._socket.unbind(address)
        except zmq.ZMQError as error:
            _log.warning("%s cannot be %s: %s", self._tcp, "opened again" if self._is_unbound else "shut", error)
        else:
            self._is_unbound = not self._is_unbound
        self._next_change_s = now + (_UNBOUND_S if self._is_unbound else _OPEN_S)


def bind_router(
    context: "zmq.Context[zmq.Socket[bytes]]",
    addresses: Iterable[str],
    guard: "Callable[[zmq.Socket[bytes]], None] | None" = None,
) -> "zmq.Socket[bytes]":
    """Return a ROUTER that listens at all addresses; Unix sockets are made anew, for this user alone.

    guard: called with the socket between the Unix sockets and the TCP addresses, for keys: libzmq copies a socket's
    options at each bind, so that the ones go without keys and the others do not.
    The caller holds the lock of the directory that the Unix sockets belong to. Raises OSError, naming the address.
    """
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.MAXMSGSIZE, messages.FRAME_BYTES_MAX)
    router.setsockopt(zmq.SNDHWM, _SEND_HWM)
    router.setsockopt(zmq.RCVHWM, _RECEIVE_HWM)
    router.setsockopt(zmq.BACKLOG, _BACKLOG)
    router.setsockopt(zmq.TCP_KEEPALIVE, 1)
    router.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S)
    router.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_INTERVAL_S)
    router.setsockopt(zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_COUNT)
    router.setsockopt(zmq.TCP_MAXRT, _UNANSWERED_MS)
    for address in sorted(addresses, key=_is_tcp):
        if guard is not None and _is_tcp(address):
            guard(router)
            guard = None
        try:
            if _is_tcp(address):
                bind_any(router, address)
            else:
                bind_unix(router, address)
        except zmq.ZMQError as error:
            router.close(0)
            raise OSError(f"{address} cannot be bound: {error}; is another daemon using it?") from error
    return router


def bind_unix(router: "zmq.Socket[bytes]", address: str) -> None:
    """Make a Unix socket for this user alone, in place of what has its name. Raises OSError (zmq.ZMQError is none)."""
    prepare_ipc(address)
    router.bind(address)
    os.chmod(ipc_path(address), 0o600)


def bind_any(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Bind an address of any family; libzmq copies a socket's options at each bind. Raises zmq.ZMQError."""
    socket.setsockopt(zmq.IPV6, is_ipv6(address))
    socket.bind(address)


def _is_tcp(address: str) -> bool:
    return not address.startswith("ipc://")
