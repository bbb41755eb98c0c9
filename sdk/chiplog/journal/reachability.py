"""Why nothing answers at an agent's address: asked of the kernel, for ZeroMQ only tries again and reports nothing."""

import errno
import os
import socket
from dataclasses import dataclass
from enum import StrEnum

_TCP_WAIT_S = 0.3  # a sender's thread has a journal to look after; a host that drops packets is out of reach


class Reason(StrEnum):
    """What keeps a process from an address."""

    DENIED = "denied"  # by its permissions: it is another user's, and will stay so
    NOT_LISTENING = "not_listening"


@dataclass(frozen=True, slots=True)
class Unreachable:
    """An address that cannot be reached. text: why, for people."""

    reason: Reason
    text: str


def probe(address: str) -> Unreachable | None:
    """Connect to an address of ZeroMQ and close again; return None if something listens there, or nobody can tell."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    try:
        if scheme == "ipc":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
                unix.setblocking(False)
                unix.connect(rest)
        elif scheme == "tcp" and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=_TCP_WAIT_S).close()
    except BlockingIOError:
        return None  # its queue is full: it listens
    except OSError as error:
        is_denied = error.errno in (errno.EACCES, errno.EPERM)
        text = os.strerror(error.errno).lower() if error.errno is not None else str(error)
        return Unreachable(Reason.DENIED if is_denied else Reason.NOT_LISTENING, text)
    except ValueError as error:  # a port or a name that the system does not take
        return Unreachable(Reason.NOT_LISTENING, str(error))
    return None
