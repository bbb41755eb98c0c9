"""Where SQL may be answered: addresses of this machine, and Unix sockets that nobody else listens on."""

import os
import socket as sockets

import zmq


def is_local(address: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    return scheme in ("ipc", "inproc") or host in ("localhost", "::1") or host.startswith("127.")


def bind_ipc(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Bind a Unix socket for this user only. Raises OSError with EADDRINUSE when somebody listens there.

    ZeroMQ itself would take the path from a living listener without a word.
    """
    path = address.removeprefix("ipc://")
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except FileNotFoundError:
            pass
        except ConnectionRefusedError:
            os.unlink(path)
        except BlockingIOError as error:  # somebody listens, and is busy
            raise OSError(zmq.EADDRINUSE, f"{path} is in use") from error
        else:
            raise OSError(zmq.EADDRINUSE, f"{path} is in use")
    socket.bind(address)
    os.chmod(path, 0o600)
