"""The socket of a receiving end: one ROUTER, bound to all its addresses. Used by the agent and by the receiver."""

import os
from collections.abc import Iterable

import zmq

from chiplog_schemas.addresses import prepare_ipc
from chiplog_schemas.limits import RECORD_BYTES_MAX

_SEND_HWM = 10_000  # acknowledgements: small, and a peer that takes none is gone
_RECEIVE_HWM = 64  # messages per peer; credit is the bound in bytes
_BACKLOG = 1_024  # a whole cluster reconnects at once


def bind_router(context: "zmq.Context[zmq.Socket[bytes]]", addresses: Iterable[str]) -> "zmq.Socket[bytes]":
    """Return a ROUTER that listens at all addresses; Unix sockets are made anew, for this user alone.

    The caller holds the lock of the directory that the Unix sockets belong to. Raises OSError, naming the address.
    """
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.MAXMSGSIZE, 2 * RECORD_BYTES_MAX)
    router.setsockopt(zmq.SNDHWM, _SEND_HWM)
    router.setsockopt(zmq.RCVHWM, _RECEIVE_HWM)
    router.setsockopt(zmq.BACKLOG, _BACKLOG)
    for address in addresses:
        prepare_ipc(address)
        try:
            router.bind(address)
        except zmq.ZMQError as error:
            router.close(0)
            raise OSError(f"{address} cannot be bound: {error}; is another daemon using it?") from error
        if address.startswith("ipc://"):
            os.chmod(address.removeprefix("ipc://"), 0o600)
    return router
