"""Find out why an agent's address does not answer. ZeroMQ only retries and reports nothing, so ask the kernel."""

import errno
import os
import socket
from dataclasses import dataclass
from enum import StrEnum

from chiplog_schemas.addresses import ipc_path, is_ipc, parse_tcp

_TCP_WAIT_S = 0.3  # short: the sender thread also maintains the journal; a host that drops packets is unreachable


class Reason(StrEnum):
    """Why a process cannot reach an address."""

    DENIED = "denied"  # by its permissions: it belongs to another user, and a retry does not help
    NOT_LISTENING = "not_listening"


@dataclass(frozen=True, slots=True)
class Unreachable:
    """An address that cannot be reached. text: the reason, for people."""

    reason: Reason
    text: str


def probe(address: str) -> Unreachable | None:
    """Connect to a ZeroMQ address and close again. Return None if a process listens there, or if that is unknown."""
    try:
        if is_ipc(address):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
                unix.setblocking(False)
                unix.connect(str(ipc_path(address)))
        else:
            host, port = parse_tcp(address)
            socket.create_connection((host.strip("[]"), port), timeout=_TCP_WAIT_S).close()
    except BlockingIOError:
        return None  # the queue of the listener is full
    except OSError as error:
        is_denied = error.errno in (errno.EACCES, errno.EPERM)
        text = os.strerror(error.errno).lower() if error.errno is not None else str(error)
        return Unreachable(Reason.DENIED if is_denied else Reason.NOT_LISTENING, text)
    except ValueError as error:  # a port or a name that the system rejects
        return Unreachable(Reason.NOT_LISTENING, str(error))
    return None
