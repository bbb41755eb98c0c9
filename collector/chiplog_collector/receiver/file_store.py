"""The saved files next to the log, and the one thread that writes them, so that no slow disk stalls the receiver.

    files/ab/abcdef…     a complete and synced content, under its SHA-256
    files/abcdef….part   an incomplete content, as far as it has been written

A part is synced every few MiB, so that the log's next sync has little of it to wait for. Only a part with the right
digest gets its final name, after a sync; then the directory is synced.
"""

import contextlib
import hashlib
import logging
import os
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.limits import FILE_PART_IDLE_S, FILE_PARTS_MAX
from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.protocol.file_receiver import Close, Finish, Open, Write
from chiplog_schemas.storage.content_files import content_path, insufficient_space_reason, is_content_name

PART = ".part"
_PIECE_BYTES = 1 << 20
_SYNC_BYTES = 8 << 20
_TIDY_INTERVAL_S = 3_600.0
_CLOSE_WAIT_S = 20.0
_log = logging.getLogger("chiplog.collector")

Job = Open | Write | Finish | Close


@dataclass(frozen=True, slots=True)
class OpenPhase:
    """This much of a content exists."""

    token: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartWritten:
    """This much of it is written."""

    token: int
    offset: int


@dataclass(frozen=True, slots=True)
class ContentStored:
    """The content is complete and synced."""

    token: int
    digest: bytes
    n_bytes: int


@dataclass(frozen=True, slots=True)
class WriteDenied:
    """The content cannot be written, for this reason."""

    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class ContentMismatch:
    """The bytes have another digest, and are dropped."""

    token: int


@dataclass(frozen=True, slots=True)
class PartClosed:
    """Nothing of this token is open any more."""

    token: int


Answer = OpenPhase | PartWritten | ContentStored | WriteDenied | ContentMismatch | PartClosed


@dataclass(slots=True)
class _Part:
    """An incomplete content. The hash and `offset` cover the bytes written."""

    path: Path
    descriptor: int
    digest: bytes
    n_bytes: int
    hasher: Any  # hashlib has no name for its type
    offset: int
    unsynced: int = 0


class FileStore:
    """Does the jobs of a FileReceiverProtocol, in order, in a dedicated thread. `results` returns its answers.

    directory: `files/` of the collector. bytes_max: of all files in it. `fileno` is readable when there are answers.
    """

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._bytes: int | None = None  # of all files; the first job counts them
        self._parts: dict[int, _Part] = {}
        self._tidy_at = 0.0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # tokens and credit limit its length
        self._answers: deque[Answer] = deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="chiplog-files", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor to poll."""
        return self._event

    def submit(self, job: Job) -> None:
        """Queue a job for the thread."""
        self._jobs.put(job)

    def results(self) -> list[Answer]:
        """Return the answers since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        answers = []
        while self._answers:
            answers.append(self._answers.popleft())
        return answers

    def close(self) -> None:
        """End the thread after its queued jobs: a few MiB, or the sync of a file.

        Does not wait for a disk that hangs.
        """
        self._jobs.put(None)
        self._thread.join(_CLOSE_WAIT_S)
        if not self._thread.is_alive():
            os.close(self._event)

    # -- the thread --

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                answer = self._do(job)
            except Exception as error:  # a disk that refuses; any other error costs this file, and not those after it
                if not isinstance(error, OSError):
                    _log.exception("a file cannot be stored")
                self._let_go(job.token)
                answer = WriteDenied(job.token, f"it cannot be written: {error}")
            if answer is not None:
                self._answers.append(answer)
                os.eventfd_write(self._event, 1)
        for token in list(self._parts):
            self._let_go(token)

    def _do(self, job: Job) -> Answer | None:
        match job:
            case Open(token, digest, n_bytes):
                return self._open(token, digest, n_bytes)
            case Write(token, payload):
                return self._write(token, payload)
            case Finish(token):
                return self._finish(token)
            case Close(token):
                self._let_go(token)
                return PartClosed(token)

    def _open(self, token: int, digest: bytes, n_bytes: int) -> Answer:
        ensure_private_dir(self._directory)
        self._remove_abandoned()
        final = content_path(self._directory, digest)
        if final.exists():
            if final.stat().st_size != n_bytes:
                return ContentMismatch(token)  # not a copy of this content: the sender's file is truncated or has grown
            self._sync_names(final)  # the process that renamed it may have died before the sync
            os.utime(final)  # safeguard: wanted-content-is-young
            return ContentStored(token, digest, n_bytes)
        path = self._directory / f"{digest.hex()}{PART}"
        there = path.stat().st_size if path.exists() else 0
        if there > n_bytes:  # safeguard: partial-file-continued
            self._remove(path)
            there = 0
        assert self._bytes is not None
        to_come = n_bytes - there + sum(part.n_bytes - part.offset for part in self._parts.values())
        if self._bytes + to_come > self._bytes_max:
            limit = f"the limit is {self._bytes_max}, set by CHIPLOG_FILES_BYTES_MAX"
            return WriteDenied(token, f"files at the collector have {self._bytes} bytes, {limit}")
        if (objection := insufficient_space_reason(self._directory, to_come)) is not None:
            return WriteDenied(token, objection)
        if not there:
            self._make_room_for_a_part()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        part = self._parts[token] = _Part(path, descriptor, digest, n_bytes, hashlib.sha256(), 0)
        while piece := os.pread(descriptor, _PIECE_BYTES, part.offset):
            part.hasher.update(piece)  # safeguard: digest-covers-earlier-part
            part.offset += len(piece)
        return OpenPhase(token, part.offset)

    def _write(self, token: int, payload: Any) -> Answer | None:
        part = self._parts.get(token)
        if part is None:
            return None  # an earlier write was refused and reported
        assert self._bytes is not None
        rest = memoryview(payload)
        while rest:
            done = os.pwrite(part.descriptor, rest, part.offset)
            part.hasher.update(rest[:done])
            part.offset += done
            part.unsynced += done
            self._bytes += done
            rest = rest[done:]
        if part.unsynced >= _SYNC_BYTES:
            os.fdatasync(part.descriptor)
            part.unsynced = 0
        return PartWritten(token, part.offset)

    def _finish(self, token: int) -> Answer | None:
        part = self._parts.get(token)
        if part is None:
            return None
        if part.offset != part.n_bytes or part.hasher.digest() != part.digest:  # safeguard: file-digest-checked
            self._let_go(token)
            self._remove(part.path)
            return ContentMismatch(token)
        os.fsync(part.descriptor)
        final = content_path(self._directory, part.digest)
        ensure_private_dir(final.parent)
        os.rename(part.path, final)
        self._sync_names(final)
        self._let_go(token)
        return ContentStored(token, part.digest, part.n_bytes)

    def _let_go(self, token: int) -> None:
        part = self._parts.pop(token, None)
        if part is not None:
            os.close(part.descriptor)

    def _sync_names(self, final: Path) -> None:
        for directory in (final.parent, self._directory, self._directory.parent):
            sync_directory(directory)

    def _remove(self, path: Path) -> None:
        size = path.stat().st_size
        path.unlink()
        self._bytes = max(0, (self._bytes or 0) - size)

    # -- what lies there --

    def _abandoned_parts(self) -> list[tuple[float, Path]]:
        """Return (last written, path) of the parts that no agent sends, the oldest first."""
        busy = {part.path for part in self._parts.values()}
        with os.scandir(self._directory) as entries:
            found = [(entry.stat().st_mtime, Path(entry.path)) for entry in entries if entry.name.endswith(PART)]
        return sorted((changed, path) for changed, path in found if path not in busy)

    def _make_room_for_a_part(self) -> None:
        idle = self._abandoned_parts()
        for _, path in idle[: max(0, len(idle) + len(self._parts) - FILE_PARTS_MAX + 1)]:
            self._remove(path)

    def _remove_abandoned(self) -> None:
        """Count the files and remove parts that no agent has continued."""
        if self._bytes is None:
            self._bytes = _bytes_below(self._directory)
        if time.monotonic() < self._tidy_at:
            return
        self._tidy_at = time.monotonic() + _TIDY_INTERVAL_S
        self._bytes = _bytes_below(self._directory)  # again: the index removes contents of deleted runs
        for changed, path in self._abandoned_parts():
            if time.time() - changed > FILE_PART_IDLE_S:
                self._remove(path)


def _bytes_below(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            if is_content_name(name.removesuffix(PART)):
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(parent, name)).st_size
    return total
