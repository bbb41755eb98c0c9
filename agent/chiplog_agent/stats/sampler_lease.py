"""Which agent of a node samples its host and GPUs: one per collector, of whichever user.

The lease is an abstract Unix socket: only one process can bind it at a time, of any user, and it disappears with the
process, however that ends. It needs no file that others could remove or must be allowed to write. Abstract names belong
to a network namespace: agents in separate namespaces each sample what they see.
"""

import errno
import hashlib
import os
import socket
import struct

from chiplog_schemas.addresses import AddressError, ipc_path, is_ipc, parse_tcp

_POLL_INTERVAL_S = 1.0  # a successor starts within this time plus a sampling interval
_PREFIX = "\0chiplog-sampler-"
_BACKLOG = 16  # peers that query the holder at the same moment
_UCRED = struct.Struct("iII")  # struct ucred of socket(7): PID, uid, gid


class SamplerLease:
    """The right to sample a node's host and GPUs for one collector.

    boot: of the machine. node: its name. collector: its public key, else its address.
    """

    def __init__(self, boot: str, node: str, collector: str) -> None:
        # safeguard: lease-per-collector
        digest = hashlib.sha256("\0".join((boot, node, _canonical(collector))).encode()).hexdigest()[:32]
        self._name = f"{_PREFIX}{digest}"
        self._socket: socket.socket | None = None
        self._next_poll_s = 0.0
        self.is_held = False

    def poll(self, now: float) -> bool:
        """Take the lease if it is free; return True if that changed who samples. now: monotonic, s."""
        if self.is_held or now < self._next_poll_s:
            return False
        is_first = self._next_poll_s == 0.0
        self._next_poll_s = now + _POLL_INTERVAL_S
        self.is_held = self._take()
        return self.is_held or is_first

    def _take(self) -> bool:
        try:
            held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return False  # no descriptor: the next check tries again
        try:
            held.bind(self._name)
            held.listen(_BACKLOG)
        except OSError as error:
            held.close()
            # Where abstract sockets are forbidden no agent could take the lease, and no agent would sample.
            return error.errno != errno.EADDRINUSE
        self._socket = held
        return True

    def holder(self) -> tuple[int, int]:
        """Return (PID, uid) of the process that holds the lease; (0, -1) if there is none, or none that is visible."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
            asker.setblocking(False)
            try:
                asker.connect(self._name)
                pid, uid, _ = _UCRED.unpack(asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            except OSError:
                return 0, -1
            return int(pid), int(uid)

    def close(self) -> None:
        """Release the lease for the next agent. May be called twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.is_held = False


def _canonical(collector: str) -> str:
    """Return the same text for all names of a collector on this host."""
    if is_ipc(collector):
        return f"ipc://{os.path.realpath(ipc_path(collector))}"
    try:
        host, port = parse_tcp(collector)
    except AddressError:
        return collector  # a key
    return f"tcp://127.0.0.1:{port}" if host in ("localhost", "127.0.0.1", "[::1]") else collector
