"""The socket of a receiving end: one ROUTER, bound to all its addresses. Used by the agent and by the receiver.

With an authenticator it also knows the key of each message, and withholds answers from a revoked key.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable

import zmq

from chiplog_schemas.addresses import ipc_path, is_ipc, is_ipv6, prepare_ipc
from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S, PEER_SILENT_S
from chiplog_schemas.once import OnceLogger
from chiplog_schemas.process.daemon import fds_nearly_exhausted
from chiplog_schemas.process.file_lock import file_id
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Reply
from chiplog_schemas.security.zap import ReceivedMessage, ZapAuthenticator, receive
from chiplog_schemas.transport.pending import has_message

_SEND_HWM = 10_000  # acknowledgements are small, and a peer that reads none is gone
_RECEIVE_HWM = 32  # messages per peer: as many batches as the credit allows, and as many without payload
_BACKLOG = 1_024  # a whole cluster may reconnect at once
_KEEPALIVE_IDLE_S = int(PEER_SILENT_S)  # a peer whose host vanished is silent: the kernel probes after this, …
_KEEPALIVE_INTERVAL_S = int(HEARTBEAT_INTERVAL_S)
_KEEPALIVE_COUNT = 5  # … this often, and closes; otherwise its connection would stay open forever
_UNBOUND_S = _OPEN_S = (
    5.0  # in turns while they are short: in one those of this host get in, in the other those with keys
)
_WARN_AGAIN_S = 60.0  # after this long, the same condition is logged again
_UNANSWERED_MS = int(2000 * PEER_SILENT_S)  # the same, where sent data is not acknowledged by the peer's kernel

_log = logging.getLogger("chiplog.door")


class RouterSocket:
    """A ROUTER and the authenticator for its TCP addresses; without keys there is none. Owned by one thread.

    Raises OSError, naming the address that cannot be bound.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        addresses: Iterable[str],
        authenticator: ZapAuthenticator | None = None,
        domain: str = "",
    ) -> None:
        self._authenticator = authenticator
        self._domain = domain
        guard = (lambda socket: authenticator.secure(socket, domain)) if authenticator is not None else None
        addresses = list(addresses)
        self.socket = bind_router(context, addresses, guard)
        self._files = {address: file_id(ipc_path(address)) for address in addresses if not _is_tcp(address)}
        self._throttle = TcpListenerThrottle(self.socket, addresses)

    @property
    def has_message(self) -> bool:
        """Return True if `receive` has something to return."""
        return has_message(self.socket)

    def receive(self, now: float) -> ReceivedMessage | None:
        """Return the next message; None in place of a rejected one. Raises zmq.Again when there is none.

        A key that was revoked after it connected gets a refusal, which the authenticator counts.
        """
        received = receive(self.socket, self._authenticator, self._domain, now)
        if not received.client.is_refused:  # safeguard: each-message-checked
            return received
        with contextlib.suppress(messages.WireError):
            session = messages.parse(received.frames).session
            self._send([received.routing, *messages.reset(session, received.client.refusal)])
        return None

    def reply(self, reply: Reply, now: float) -> None:
        """Send an answer, unless its key was revoked or the peer has left. The peer will send again."""
        permit = reply.permit
        # safeguard: revoked-key-gets-nothing
        if permit is None or (
            self._authenticator is not None and self._authenticator.is_still_allowed(permit, self._domain, now)
        ):
            self._send([reply.routing, *reply.frames])

    def throttle_listeners(self, now: float) -> None:
        """Keep unknown peers from using up all descriptors.

        Call it in every turn of a loop; see TcpListenerThrottle.
        """
        self._throttle.tick(now)

    def check_files(self) -> None:
        """Bind Unix sockets again whose files were removed, on the same ROUTER. Connected peers do not notice.

        The previous listener stays, which costs a descriptor. Raises OSError; call it again then.
        """
        for address, before in self._files.items():
            if file_id(ipc_path(address)) != before and not self.socket.closed:  # safeguard: removed-socket-made-again
                bind_unix(self.socket, address)
                self._files[address] = file_id(ipc_path(address))
                _log.warning("the socket %s was removed and has been restored", ipc_path(address))

    def close(self, linger_ms: int) -> None:
        """Unbind and close. May be called twice."""
        if not self.socket.closed:
            self.socket.close(linger_ms)

    def _send(self, frames: list[bytes | memoryview]) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self.socket.send_multipart(frames, zmq.DONTWAIT)


class TcpListenerThrottle:
    """Closes a socket's TCP addresses for some seconds when descriptors run out. Owned by the socket's thread.

    libzmq accepts a connection before it asks for a key, so unknown peers could use up every descriptor. Then no file
    can be opened and no local peer can connect; if one tries, libzmq aborts the process, because its Unix sockets do
    not handle EMFILE of accept(2). Closing disconnects every TCP peer. Peers with keys reconnect and resend whatever
    was not acknowledged.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", addresses: Iterable[str]) -> None:
        self._socket = socket
        self._tcp = [address for address in addresses if _is_tcp(address)]
        self._is_unbound = False
        self._next_change_s = 0.0  # when TCP may be closed or opened again
        self._once = OnceLogger(_log.warning, keys_max=1, quiet_s=_WARN_AGAIN_S)

    def tick(self, now: float) -> None:
        """Close or open TCP when due. Call it in every turn of a loop."""
        if not self._tcp or now < self._next_change_s or self._socket.closed:
            return
        try:
            if self._is_unbound:  # safeguard: shut-sockets-reopen
                for address in self._tcp:
                    bind_any(self._socket, address)
            elif not fds_nearly_exhausted():  # safeguard: strangers-shut-out
                return
            else:
                text = "descriptors are running out; %s is shut for %g s at a time"
                self._once.log(text, text, self._tcp, _UNBOUND_S, now=now)
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
    """Return a ROUTER that listens at all addresses. Unix sockets are recreated, for this user alone.

    guard: called with the socket after the Unix sockets and before the TCP addresses are bound, to set keys. libzmq
    copies a socket's options at each bind, so only the latter require keys.
    The caller holds the lock of the directory that the Unix sockets belong to. Raises OSError, naming the address.
    """
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.MAXMSGSIZE, messages.FRAME_BYTES_MAX)  # safeguard: frame-size-bounded
    router.setsockopt(zmq.SNDHWM, _SEND_HWM)
    router.setsockopt(zmq.RCVHWM, _RECEIVE_HWM)
    router.setsockopt(zmq.BACKLOG, _BACKLOG)
    router.setsockopt(zmq.TCP_KEEPALIVE, 1)  # safeguard: idle-connection-probed
    router.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S)
    router.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_INTERVAL_S)
    router.setsockopt(zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_COUNT)
    router.setsockopt(zmq.TCP_MAXRT, _UNANSWERED_MS)  # safeguard: unacknowledged-connection-closed
    for address in sorted(addresses, key=_is_tcp):  # safeguard: unix-bound-before-keys
        if guard is not None and _is_tcp(address):
            guard(router)  # safeguard: tcp-bound-with-keys
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
    """Create a Unix socket for this user alone, replacing a file of its name. Raises OSError (not zmq.ZMQError)."""
    prepare_ipc(address)
    router.bind(address)
    os.chmod(ipc_path(address), 0o600)  # safeguard: private-socket


def bind_any(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Bind an address of any family; libzmq copies a socket's options at each bind. Raises zmq.ZMQError."""
    socket.setsockopt(zmq.IPV6, is_ipv6(address))  # safeguard: bind-ipv6
    socket.bind(address)


def _is_tcp(address: str) -> bool:
    return not is_ipc(address)
