"""The lane of saved files: offers the outbox's files to the collector, one at a time, over a dedicated socket.

On the events' socket no chunk ever precedes an event, and files are offered only while that link is open. A copy is
removed once the collector has confirmed that it is stored. After any failure the file is offered again and continues at
the collector's offset.
"""

import contextlib
import errno
import hashlib
import logging
import math
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from chiplog_schemas.addresses import is_ipv6
from chiplog_schemas.backoff import half_to_whole
from chiplog_schemas.limits import BACKOFF_MAX_S, FILE_PAUSE_MAX_S
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Send
from chiplog_schemas.protocol.file_sender import (
    DigestMismatch,
    FileDenied,
    FileSenderAction,
    FileSenderProtocol,
    FileStored,
    PeerTimeout,
)
from chiplog_schemas.security.curve import ClientCurve
from chiplog_schemas.storage.content_files import is_content_name

_POLL_INTERVAL_S = 0.5  # between two checks whether the outbox has changed
_POLL_ANYWAY_S = 60.0  # the same for an outbox that shows no change
_CLOCK_STEP_S = 3.0  # granularity of file times; FAT has 2 s
_ENTRIES_PER_STEP = 4_096  # listed in one turn of the loop: about 25 ms
_PAUSE_S = 1.0  # before the next offer, after a refused file or a failed socket
_SHORT_WAIT_S = 5.0  # a collector that is only busy requests less
_MESSAGES_PER_STEP = 64
_SEND_HWM = 64  # frames; credit bounds the bytes long before this
_CHECK_BYTES = 4 << 20  # of a copy that may be damaged, verified in one turn of the loop
_LEFTOVER_AGE_S = 600.0  # a copy in progress is written to all the time
_TIDY_INTERVAL_S = 60.0
_CONNECT_TIMEOUT_MS = 2_000
_SHORT_OF_ALL = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not the fault of the file
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not block the loop
_log = logging.getLogger("chiplog.agent")


@dataclass(slots=True)
class _Verification:
    """A copy that is verified, because its bytes arrived with another digest."""

    digest: bytes
    descriptor: int
    hasher: Any  # hashlib has no name for its type
    offset: int = 0


@dataclass(slots=True)
class _OutboxScan:
    """The outbox during a scan: a part of it in each turn of the loop."""

    entries: Any  # of os.scandir
    found: list[tuple[float, str]] = field(default_factory=list)  # (time, name) of files that may be offered
    refused: set[str] = field(default_factory=set)  # names that still exist
    leftovers: list[Path] = field(default_factory=list)

    def go_on(self, refused: dict[str, tuple[float, str]], now: float) -> bool:
        """List the next entries. Return True if these were the last."""
        for _ in range(_ENTRIES_PER_STEP):
            entry = next(self.entries, None)
            if entry is None:
                return True
            name = entry.name
            if name in refused:
                self.refused.add(name)
                if now < refused[name][0]:
                    continue
            if is_content_name(name):
                try:
                    self.found.append((entry.stat(follow_symlinks=False).st_mtime, name))
                except OSError:  # removed, or a bad disk: opening the file will show it
                    self.found.append((0.0, name))
            elif name.startswith(".new-"):
                self.leftovers.append(Path(entry.path))
        return False


class FileUploader:
    """Delivers one outbox. Owned by the loop's thread; `step` never blocks on more than a read of a chunk.

    sender: 16 bytes. info: sent in OFFER. emit: adds a row to `events`: (kind, level, message, body).
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        sender: bytes,
        info: dict[str, Any],
        outbox: Path,
        emit: Callable[[str, str, str, dict[str, Any]], None],
        *,
        curve: ClientCurve | None = None,
    ) -> None:
        self.socket: zmq.Socket[bytes] | None = None
        self._context = context
        self._address = address
        self._curve = curve
        self._outbox = outbox
        self._emit = emit
        self._protocol = FileSenderProtocol(sender, info, lambda: os.urandom(8), half_to_whole)
        self._waiting: deque[str] = deque()  # names, from the last scan
        self._refused: dict[str, tuple[float, str]] = {}  # name -> when to offer it again, and the reported reason
        self._name = ""  # of the current file
        self._is_failing = False
        self._descriptor = -1  # of the current file
        self._verification: _Verification | None = None
        self._next_poll_s = self._offer_at = self._tidy_at = self._again_at = 0.0
        self._scan: _OutboxScan | None = None  # the scan in progress
        self._changed_ns = -1  # last change of the outbox, as of the last scan; -1: unreliable

    @property
    def is_idle(self) -> bool:
        """Return True if only refused files are left to deliver: the next agent tries those again."""
        is_sending = bool(self._protocol.digest) or self._verification is not None
        return not (self._waiting or is_sending or self._scan is not None)

    def step(self, now: float, *, is_open: bool) -> None:
        """Receive, send what the credit allows, start the next file. is_open: whether the events' link is open."""
        try:
            self._receive(now)
            self._act(self._protocol.tick(now), now)
            self._send_chunks(now)
            if not self._protocol.digest and self._verification is None:
                self._poll(now)
                if is_open and now >= self._offer_at:
                    self._begin(now)
        except (OSError, zmq.ZMQError) as error:  # a disk or a system that refuses, for now
            name = self._name or (self._verification.digest.hex() if self._verification is not None else "")
            if name and isinstance(error, OSError) and error.errno not in _SHORT_OF_ALL:
                self._skip_unreadable(name, error, now)
                return
            if not self._is_failing:
                _log.warning("files cannot be delivered: %s; trying again", error)
            self._is_failing = True
            self._disconnect(now + BACKOFF_MAX_S)

    def close(self) -> None:
        """Close; files that are not confirmed as stored stay in the outbox."""
        self._disconnect(math.inf)

    # -- the file --

    def _poll(self, now: float) -> None:
        """Scan the outbox again when all scanned files are done, and new ones arrived or may be offered again."""
        if self._waiting or (self._scan is None and now < self._next_poll_s):
            return
        if self._scan is None:
            self._next_poll_s = now + _POLL_INTERVAL_S
            try:
                changed_ns = os.stat(self._outbox).st_mtime_ns
                if changed_ns == self._changed_ns and now < self._again_at:
                    return
                self._scan = _OutboxScan(os.scandir(self._outbox))
            except FileNotFoundError:
                return  # no file was ever saved
            # File times have steps: a change within the same step as the last one shows no other time.
            self._changed_ns = changed_ns if abs(time.time() - changed_ns / 1e9) > _CLOCK_STEP_S else -1
        if not self._scan.go_on(self._refused, now):
            return
        scan, self._scan = self._scan, None
        self._refused = {name: reason for name, reason in self._refused.items() if name in scan.refused}
        self._again_at = min([now + _POLL_ANYWAY_S, *(until for until, _ in self._refused.values())])
        self._waiting.extend(name for _, name in sorted(scan.found))
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_INTERVAL_S
            for path in scan.leftovers:  # of processes that died while they made a copy
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > _LEFTOVER_AGE_S:
                        path.unlink()

    def _begin(self, now: float) -> None:
        if not self._waiting:
            return
        self._name = name = self._waiting.popleft()
        try:
            self._descriptor = os.open(self._outbox / name, _OPEN_FLAGS)
        except FileNotFoundError:
            self._name = ""  # another process removed it
            return
        about = os.fstat(self._descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if self.socket is None:
            self.socket = self._connect()
        # safeguard: file-copy-kept-until-stored
        self._act(self._protocol.offer(bytes.fromhex(name), about.st_size, now), now)

    def _send_chunks(self, now: float) -> None:
        if self._verification is not None:
            self._verify_chunk(self._verification, now)
        while window := self._protocol.window():
            payload = os.pread(self._descriptor, window, self._protocol.offset)
            if not payload:
                digest = self._protocol.digest
                self._end()
                self._damaged(digest)  # it was truncated since it was offered
                return
            self._act([self._protocol.chunk(payload)], now)

    def _verify_chunk(self, check: _Verification, now: float) -> None:
        piece = os.pread(check.descriptor, _CHECK_BYTES, check.offset)
        check.hasher.update(piece)
        check.offset += len(piece)
        if piece:
            return
        self._verification = None
        os.close(check.descriptor)
        if check.hasher.digest() != check.digest:
            self._damaged(check.digest)
        else:
            self._defer(check.digest, now + FILE_PAUSE_MAX_S, "it arrived with another digest")

    def _damaged(self, digest: bytes) -> None:
        """Discard a copy whose digest is wrong: after a power failure, a disk error, or a change by hand."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._outbox / digest.hex())
        message = f"the copy of a saved file with SHA-256 {digest.hex()} is damaged in the outbox; save it again"
        _log.error("%s", message)
        self._emit("file_damaged", "error", message, {"sha256": digest.hex()})

    def _defer(self, digest: bytes, until: float, reason: str) -> None:
        name = digest.hex()
        if self._refused.get(name, (0.0, ""))[1] != reason:
            message = f"saved file {name} waits in the outbox: {reason}"
            _log.warning("%s", message)
            self._emit("file_waits", "warning", message, {"sha256": name, "reason": reason})
        self._refused[name] = until, reason
        self._again_at = min(self._again_at, until)

    def _skip_unreadable(self, name: str, error: OSError, now: float) -> None:
        """Defer a copy that cannot be read, so that the others are delivered."""
        self._end()
        if self._verification is not None:
            os.close(self._verification.descriptor)
            self._verification = None
        reason = f"its copy cannot be read: {error.strerror or error}"
        self._defer(bytes.fromhex(name), now + FILE_PAUSE_MAX_S, reason)

    # -- the socket --

    def _receive(self, now: float) -> None:
        for _ in range(_MESSAGES_PER_STEP):
            if self.socket is None:
                return
            try:
                frames = self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._act(self._protocol.receive(frames, now), now)

    def _act(self, actions: list[FileSenderAction], now: float) -> None:
        for action in actions:
            match action:
                case Send(frames) if self.socket is not None:
                    with contextlib.suppress(zmq.Again):  # the peer is gone: its silence will show it
                        self.socket.send_multipart(frames, zmq.DONTWAIT)
                case FileStored(digest):
                    self._end()
                    self._is_failing = False
                    self._refused.pop(digest.hex(), None)
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._outbox / digest.hex())
                case FileDenied(digest, wait_s, reason):
                    self._end()
                    self._offer_at = now + min(wait_s, _PAUSE_S)
                    if wait_s < _SHORT_WAIT_S:
                        self._waiting.append(digest.hex())
                    else:
                        self._defer(digest, now + wait_s, reason)
                case DigestMismatch(digest):
                    descriptor, self._descriptor, self._name = self._descriptor, -1, ""
                    self._verification = _Verification(digest, descriptor, hashlib.sha256())
                case PeerTimeout():
                    self._disconnect(now + _PAUSE_S)

    def _connect(self) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, _SEND_HWM)
            socket.setsockopt(zmq.MAXMSGSIZE, messages.HEAD_BYTES_MAX)
            socket.setsockopt(zmq.RECONNECT_IVL, 20)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
            socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT_MS)
            if self._curve is not None:
                self._curve.configure(socket)
            socket.setsockopt(zmq.IPV6, is_ipv6(self._address))  # safeguard: files-over-ipv6
            socket.connect(self._address)
        except BaseException:
            socket.close(0)
            raise
        return socket

    def _end(self) -> None:
        """Close the current file; its copy stays."""
        self._protocol.reset()
        self._name = ""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _disconnect(self, again_at: float) -> None:
        """Discard socket and session; the current file is offered first again."""
        if self._scan is not None:
            self._scan.entries.close()
            self._scan, self._changed_ns = None, -1
        if self._name:
            self._waiting.appendleft(self._name)
        self._end()
        if self._verification is not None:
            self._waiting.append(self._verification.digest.hex())
            os.close(self._verification.descriptor)
            self._verification = None
        if self.socket is not None:
            self.socket.close(0)
            self.socket = None
        self._offer_at = again_at
