"""Files of a store on this disk: those of a directory in place, those of a bucket as copies, kept for a while."""

import contextlib
import hashlib
import logging
import math
import os
import shutil
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from chiplog_collector.store.delta_store import DeltaStore, StoredFile, StoreError
from chiplog_schemas.storage.content_files import content_path

KEPT_BYTES = 20_000_000_000  # of copies: two of the largest queries that are allowed
CONTENTS_BYTES = 10_000_000_000  # of copied contents of saved files: some checkpoints
_CONTENT_READ_S = 60.0  # from its copy to the end of the query that asked for it
_COPIED_NS = 0  # the time of change that marks a copy: a content that the collector itself received has a later one
_AT_ONCE = 8  # files that are copied at the same time: one stream rarely fills a link
_log = logging.getLogger("chiplog.index")


class LocalFiles:
    """Copies of a store's files in a directory of its own, the least used ones removed first. Thread-safe.

    Copies of contents are among the contents of the collector itself. Those that it has received are never removed.
    """

    def __init__(
        self,
        store: DeltaStore,
        directory: Path,
        kept_bytes: int = KEPT_BYTES,
        contents_bytes: int = CONTENTS_BYTES,
    ) -> None:
        self._contents = directory / "contents"  # an empty file for each content that was copied
        self._contents_bytes = contents_bytes
        self._store = store
        self._directory = directory
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # by name, the least used first
        self._users: dict[str, int] = {}
        directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(directory.glob("*.parquet"), key=lambda path: path.stat().st_mtime):
            self._sizes[path.name] = path.stat().st_size
        for path in directory.glob("*.part"):
            path.unlink()

    @contextlib.contextmanager
    def opened(self, table: str, files: Iterable[StoredFile], deadline: float = math.inf) -> Iterator[list[str]]:
        """Yield the paths of files, which stay as long as the block runs.

        Args:
            table: Their table.
            files: The files.
            deadline: When to give up, by `time.monotonic()`. Copies that have begun continue, for the next query.

        Raises:
            StoreError: A file is gone, or the store is away.
            OSError: This disk refuses.
        """
        if self._store.is_disk:
            yield [self._store.address_of(table, file) for file in files]
            return
        wanted = {f"{table}-{file.path.rpartition('/')[2]}": file for file in files}
        with self._lock:
            for name in wanted:
                self._users[name] = self._users.get(name, 0) + 1
        try:
            missing = [name for name in wanted if not (self._directory / name).exists()]
            pool = ThreadPoolExecutor(_AT_ONCE)
            try:
                copied = [pool.submit(self._copy, table, wanted[name], name) for name in missing]
                late = wait(copied, max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))).not_done
                if late:  # safeguard: slow-store-ends-no-process
                    raise StoreError(f"files that have not arrived in time: {len(late)} of {len(copied)}")
                for future in copied:
                    future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
            with self._lock:
                for name in wanted:
                    self._sizes.move_to_end(name)
                self._make_room()
            yield [str(self._directory / name) for name in wanted]
        finally:
            with self._lock:
                for name in wanted:
                    self._users[name] -= 1
                    if not self._users[name]:
                        del self._users[name]

    def fetch_content(self, digest: str, files: Path) -> None:
        """Copy the content of a saved file into a directory of contents.

        Raises:
            FileNotFoundError: The store does not have it.
            OSError: The store or this disk refuses, or its copy has another digest.
        """
        target = content_path(files, bytes.fromhex(digest))
        target.parent.mkdir(parents=True, exist_ok=True)
        self._contents.mkdir(exist_ok=True)
        part = self._directory / f"{uuid.uuid4()}.part"
        try:
            self._store.fetch_content(digest, part)
            with part.open("rb") as copy:
                found = hashlib.file_digest(copy, "sha256").hexdigest()
            if found != digest:  # safeguard: copied-content-compared
                _log.warning("content %s of %s has the SHA-256 %s; it is not used", digest, self._store.url, found)
                raise OSError(f"content {digest} of {self._store.url} has another SHA-256; remove it there")
            os.utime(part, ns=(time.time_ns(), _COPIED_NS))
            with self._lock:
                self._make_room_for(part.stat().st_size, files)
                (self._contents / digest).touch()
                if not target.exists():  # else the collector has received it since
                    shutil.move(part, target)
        except StoreError as error:
            raise OSError(str(error)) from error
        finally:
            part.unlink(missing_ok=True)

    def _make_room_for(self, n_bytes: int, files: Path) -> None:
        """Remove the copied contents that were read least recently, until another one is within the bound."""
        copies = []
        for mark in self._contents.iterdir():
            path = content_path(files, bytes.fromhex(mark.name))
            try:
                found = path.stat()
            except FileNotFoundError:
                mark.unlink()
                continue
            if found.st_mtime_ns != _COPIED_NS:  # safeguard: received-content-stays
                mark.unlink()
                continue
            copies.append((found.st_atime, found.st_size, path, mark))
        total = n_bytes + sum(size for _, size, _, _ in copies)
        for read_at, size, path, mark in sorted(copies):
            if total <= self._contents_bytes or time.time() - read_at < _CONTENT_READ_S:
                return
            aside = self._directory / f"{mark.name}.part"
            os.rename(path, aside)
            if aside.stat().st_mtime_ns != _COPIED_NS:  # its agent has just brought it
                os.rename(aside, path)
            aside.unlink(missing_ok=True)
            mark.unlink()
            total -= size

    def _copy(self, table: str, file: StoredFile, name: str) -> None:
        part = self._directory / f"{uuid.uuid4()}.part"
        try:
            self._store.fetch(table, file, part)
            os.replace(part, self._directory / name)
            with self._lock:
                self._sizes[name] = file.size_bytes
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Remove copies that no query uses, until the bound is kept."""
        total = sum(self._sizes.values())
        for name in list(self._sizes):
            if total <= self._kept_bytes:
                return
            if name not in self._users:  # safeguard: copies-in-use-stay
                total -= self._sizes.pop(name)
                (self._directory / name).unlink(missing_ok=True)
