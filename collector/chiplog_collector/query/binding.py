"""Bind Unix sockets for SQL, but never at a path where another process listens."""

import os
import socket as sockets

import zmq

from chiplog_schemas.addresses import ipc_path, is_ipc
from chiplog_schemas.transport.router import bind_any


def bind_ipc(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Bind a Unix socket for this user only. Raises OSError with EADDRINUSE when a process listens there.

    ZeroMQ itself would silently replace the path of a running listener.
    """
    path = _free_path(address)
    socket.bind(address)
    os.chmod(path, 0o600)


def check_free(address: str) -> None:
    """Raise OSError if an address cannot be bound now: the index would restart for it again and again."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        if is_ipc(address):
            bind_ipc(socket, address)
        else:
            bind_any(socket, address)
    except (zmq.ZMQError, OSError) as error:
        raise OSError(f"query address {address} cannot be bound: {error}") from error
    finally:
        socket.close()
        context.term()


def listen_ipc(address: str) -> sockets.socket:
    """Return a Unix socket that listens for this user only. Raises OSError, as `bind_ipc` does.

    The caller accepts no connection: it learns that a client is there, and closes the socket for the process that
    answers. The client's ZeroMQ then connects again.
    """
    path = _free_path(address)
    listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _free_path(address: str) -> str:
    """Return the path of an address, without the file that an ended process left there."""
    path = str(ipc_path(address))
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except FileNotFoundError:
            pass
        except ConnectionRefusedError:
            os.unlink(path)
        except BlockingIOError as error:  # a process listens, and is busy
            raise OSError(zmq.EADDRINUSE, f"{path} is in use") from error
        else:
            raise OSError(zmq.EADDRINUSE, f"{path} is in use")
    return path
