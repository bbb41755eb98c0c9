"""Pass the original targets of a launcher's streams to the processes that it starts, over a Unix socket.

A rank below `chiplog run` captures its console itself. Its lines must reach the terminal, and must not be recorded a
second time on their way through the launcher's pipe. A forked child inherits the original target; the processes of a
launcher close all inherited descriptors. So they ask for it: the socket has an abstract name, made of the launcher's
PID and start, and both ends check that the other one is of the same user.
"""

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping

from chiplog.console.stream_fds import fd_identity, inherited_pipes
from chiplog_schemas.process.inherited_run import LAUNCHER, PARENT_RUN, decode_inherited, pid_namespace_id
from chiplog_schemas.process.procfs import start_ticks

WAIT_S = 0.25  # for an answer; after it, the launcher records the lines too. init() waits no longer
_BYTES_MAX = 1_024  # of the answer: two streams
_STREAMS_MAX = 2
_QUEUE = 256  # ranks that start at once
_CREDENTIALS = struct.Struct("3i")  # struct ucred: PID, UID, GID
Targets = dict[int, tuple[tuple[int, int], int]]  # by stream: (device, inode) of what replaces it; its target


class TargetServer:
    """Answers each connection with the targets, until `close`. Raises OSError without a socket or a thread for it."""

    def __init__(self, targets: Callable[[], Targets]) -> None:
        self._targets = targets
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._answer_all, name="chiplog-targets", daemon=True)
        try:
            self._socket.bind(_address(os.getpid(), str(start_ticks(os.getpid()))))
            self._socket.listen(_QUEUE)
            self._thread.start()
        except (OSError, RuntimeError) as error:  # RuntimeError: out of threads
            self._socket.close()
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Stop answering."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._thread.join(WAIT_S)
        self._socket.close()

    def _answer_all(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return  # closed
            with peer, contextlib.suppress(OSError):  # it has exited, or a descriptor was closed
                if _user_of(peer) == os.geteuid():
                    targets = self._targets()
                    about = json.dumps([[stream, *replaced] for stream, (replaced, _) in targets.items()])
                    socket.send_fds(peer, [about.encode()], [target for _, target in targets.values()])


def adopt_targets(environ: Mapping[str, str]) -> None:
    """Note the original target of each stream that is a launcher's pipe, for this process's own capture.

    If the launcher does not answer, its label has the lines of this process too.
    """
    left = decode_inherited(environ.get(PARENT_RUN, ""))
    if left.kind != LAUNCHER or not left.world or left.world != pid_namespace_id() or left.pid == str(os.getpid()):
        return
    # TypeError: a launcher of another version.
    with (
        contextlib.suppress(OSError, ValueError, TypeError),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as launcher,
    ):
        launcher.settimeout(WAIT_S)
        launcher.connect(_address(int(left.pid), left.start))
        if _user_of(launcher) != os.geteuid():
            return
        about, targets, _, _ = socket.recv_fds(launcher, _BYTES_MAX, _STREAMS_MAX)
        streams = json.loads(about) if about else []
        for (stream, *replaced), target in zip(streams, targets, strict=False):
            os.set_inheritable(target, False)  # recv_fds() of Python 3.11 drops its flags
            if fd_identity(stream) == tuple(replaced):  # safeguard: rank-prints-past-launcher
                inherited_pipes[stream] = ((replaced[0], replaced[1]), target)
            else:
                os.close(target)  # its launcher has redirected this stream, to a file for example


def _address(pid: int, start: str) -> bytes:
    return f"\0chiplog-targets-{pid}-{start}".encode()


def _user_of(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
