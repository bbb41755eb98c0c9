"""Bind a Unix socket for SQL, but never at a path where another process listens."""

import os
import socket as sockets

import zmq

from chiplog_schemas.addresses import ipc_path


def bind_ipc(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Bind a Unix socket for this user only. Raises OSError with EADDRINUSE when a process listens there.

    ZeroMQ itself would silently replace the path of a running listener.
    """
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
    socket.bind(address)
    os.chmod(path, 0o600)
