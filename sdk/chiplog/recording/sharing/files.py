"""`run.save`, media, artifacts: copy contents into the outbox of this node, and emit events. The agent delivers them.

The calling thread copies first, so later writes of the training to its file change nothing. A complete copy gets its
name, the SHA-256 of its content, and then the event is appended. So a reader of the event can rely on the bytes, and a
process that is killed in between leaves bytes without an event, never the reverse.
"""

import fcntl
import glob
import hashlib
import os
import posixpath
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.text import clean_utf8, short_repr
from chiplog_schemas.interrupts import unless_interrupt
from chiplog_schemas.limits import FILES_PER_SAVE_MAX
from chiplog_schemas.paths import Paths, check_root, ensure_private_dir
from chiplog_schemas.storage.content_files import insufficient_space_reason, invalid_path_reason

_FICLONE = 0x40049409  # linux/fs.h: share another file's blocks until one of the two is modified
_PIECE_BYTES = 1 << 20
_SHOWN_CHARS = 200  # of a path in a message
_OUTBOX_AGE_S = 1.0  # its size is known for so long: thousands of files may wait in it


class NotSavedError(Exception):
    """Why a file is not saved: (kind, text after the path in the message)."""


class SavedFile(NamedTuple):
    """A file of a run: its name there, and its content."""

    path: str
    size: int
    sha256: bytes


class FileSaver:
    """Save files of one run.

    outbox: the directory of the copies. file_bytes_max, outbox_bytes_max: limits of one file and of all waiting files.
    emit: called with (path in the run, bytes, digest) for each saved file. report_fault: called for each rejected one.
    """

    def __init__(
        self,
        places: Paths,
        outbox: Path,
        *,
        file_bytes_max: int,
        outbox_bytes_max: int,
        emit: Callable[[str, int, bytes], None],
        report_fault: Callable[[Diagnostic], None],
    ) -> None:
        self._places = places
        self._outbox = outbox
        self._file_bytes_max = file_bytes_max
        self._outbox_bytes_max = outbox_bytes_max
        self._emit = emit
        self._report_fault = report_fault
        self._n_refused = 0
        self._waiting = (float("-inf"), 0)  # when the outbox was looked at, and the bytes in it since

    def save(self, path: Any, name: Any = None) -> list[SavedFile]:
        """Save the files of a path or pattern, and return them."""
        try:
            pattern = os.fsdecode(path)
            given = None if name is None else os.fsdecode(name)
        except unless_interrupt(TypeError):
            message = f"save() takes a path, not {short_repr(path)}" + (
                "" if name is None else f" as {short_repr(name)}"
            )
            self._report_fault(Diagnostic("file_bad_path", type(path).__name__, f"{message}; it is not saved"))
            return []
        saved: list[SavedFile] = []
        left = self._outbox_bytes_max  # the agent frees room during copies, so bound one call
        n_refused, count = self._n_refused, 0
        for count, (source, in_run) in enumerate(self._resolve_sources(pattern, given), 1):
            if count > FILES_PER_SAVE_MAX:
                message = f"more than {FILES_PER_SAVE_MAX} files; the others are not saved, so save an archive of them"
                self._refuse(pattern, "too_many_files", message)
                break
            try:
                if saved and left < os.stat(source).st_size <= self._file_bytes_max:  # safeguard: save-bytes-bounded
                    limit = f"more than {self._outbox_bytes_max} bytes at once, set by CHIPLOG_OUTBOX_BYTES_MAX"
                    message = f"{limit}; {clean_utf8(in_run)[:_SHOWN_CHARS]!r} and the files after it are not saved"
                    self._refuse(pattern, "too_many_bytes", f"{message}, so save fewer files")
                    break
                size, digest = self._store(source, in_run, source)
                left -= size
            except NotSavedError as error:
                self._refuse(source, *error.args)
            except unless_interrupt(OSError) as error:
                self._refuse(source, "file_unreadable", f"{error.strerror or error}; it is not saved")
            else:
                self._emit(in_run, size, digest)
                saved.append(SavedFile(in_run, size, digest))
        if not count and self._n_refused == n_refused:
            self._refuse(pattern, "file_missing", "it contains no files; nothing is saved")
        return saved

    def files_of(self, source: str, path: str) -> Iterator[tuple[str, str]]:
        """Yield the files of an artifact's entry: (file, name in the artifact)."""
        if os.path.isdir(source):
            yield from self._walk_directory(source, path)
        elif not path:
            self._refuse(source, "file_missing", "it is not a directory; nothing of it is added")
        else:
            yield source, posixpath.normpath(path)

    def keep(self, source: str, path: str, shown: str) -> tuple[int, bytes, str] | None:
        """Copy a file of an artifact. Return its size, its digest, and why its bytes are omitted; empty: they are kept.

        A file above a limit is only hashed. None: it cannot be read, which was reported. shown: its name in messages.
        """
        try:
            try:
                return *self._store(source, path, shown), ""
            except NotSavedError as error:
                kind, why = error.args
                is_limit = kind in ("file_too_large", "outbox_full")
                self._refuse(shown, kind, f"{why}, and the artifact names it without its bytes" if is_limit else why)
                return (*self._hash(source), clean_utf8(why)) if is_limit else None
        except unless_interrupt(OSError) as error:
            self._refuse(shown, "file_unreadable", f"{error.strerror or error}; it is not saved")
            return None

    def _refuse(self, source: str, kind: str, why: str) -> None:
        self._n_refused += 1
        where = clean_utf8(source)[:_SHOWN_CHARS]
        self._report_fault(Diagnostic(kind, where, clean_utf8(f"file {where!r}: {why}")))

    # -- which files, and their names --

    def _resolve_sources(self, pattern: str, name: str | None) -> Iterator[tuple[str, str]]:
        """Yield (file, name in the run)."""
        if os.path.lexists(pattern) or not glob.has_magic(pattern):
            if os.path.isdir(pattern):
                yield from self._walk_directory(pattern, _name_in_run(pattern) if name is None else name)
            else:
                yield pattern, posixpath.normpath(name) if name else _name_in_run(pattern)
            return
        fixed = pattern
        while glob.has_magic(fixed):
            fixed = os.path.dirname(fixed)
        is_all = not os.path.relpath(pattern, fixed or ".").split(os.sep)[0].strip("*")
        if is_all and os.path.realpath(fixed or ".") in (os.sep, _home()) and self._is_forbidden_root(fixed or "."):
            return
        any_found = False
        for found in sorted(glob.iglob(pattern, recursive=True, include_hidden=False)):
            any_found = True
            if "**" in pattern and _contains(self._places.root, found):
                continue  # skip chiplog's own files, as below
            in_run = _name_in_run(found) if name is None else posixpath.join(name, os.path.relpath(found, fixed or "."))
            if not os.path.isdir(found):
                yield found, posixpath.normpath(in_run)
            elif "**" not in pattern:  # `**` finds the content of directories itself
                yield from self._walk_directory(found, in_run)
        if not any_found:
            self._refuse(pattern, "file_missing", "nothing matches this pattern; it is not saved")

    def _walk_directory(self, directory: str, in_run: str) -> Iterator[tuple[str, str]]:
        """Yield all files of a directory tree. Links to directories are not followed, because they may form cycles."""
        if self._is_forbidden_root(directory):  # safeguard: save-refuses-whole-disk
            return
        own = {os.path.realpath(self._places.root), os.path.realpath(self._places.local)}

        def unreadable(error: OSError) -> None:
            self._refuse(str(error.filename), "file_unreadable", f"{error.strerror}; its content is not saved")

        for parent, directories, files in os.walk(directory, onerror=unreadable):
            # Skip chiplog's own directories: an outbox in the directory would be copied into itself.
            directories[:] = sorted(d for d in directories if os.path.realpath(os.path.join(parent, d)) not in own)
            for file in sorted(files):
                source = os.path.join(parent, file)
                yield source, posixpath.normpath(posixpath.join(in_run, os.path.relpath(source, directory)))

    def _is_forbidden_root(self, directory: str) -> bool:
        """Reject a directory given by mistake: with an empty variable, `{checkpoints}/` is the whole disk."""
        if _contains(directory, os.sep):
            what = "it is the whole disk"
        elif (home := _home()) is not None and _contains(directory, home):
            what = "it is, or holds, a home directory"
        elif _contains(self._places.root, directory):
            what = f"it belongs to CHIPLOG_DIR ({self._places.root})"
        else:
            return False
        self._refuse(directory, "too_much", f"{what}; none of it is saved, so give a directory or files below it")
        return True

    # -- the copy --

    def _store(self, source: str, in_run: str, shown: str) -> tuple[int, bytes]:
        """Copy one file into the outbox; return its size and digest. Raises NotSavedError, OSError."""
        name = clean_utf8(in_run)
        if (objection := invalid_path_reason(name)) is not None:
            raise NotSavedError("file_bad_path", f"{name[:_SHOWN_CHARS]!r} cannot be its name in the run: {objection}")
        # O_NONBLOCK: opening a pipe would wait for its other end.
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise NotSavedError("file_irregular", "it is not a regular file; it is not saved")
            self._check_size(before.st_size)
            copied = self._copy(descriptor, before.st_size)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            why = "it changed while it was copied; the copy is saved, so save it again once it is complete"
            self._refuse(shown, "file_changed", why)
        return copied

    def _check_size(self, size: int) -> None:
        if size > self._file_bytes_max:
            limit = f"the limit is {self._file_bytes_max}, set by CHIPLOG_FILE_BYTES_MAX"
            raise NotSavedError("file_too_large", f"it has {size} bytes, {limit}; it is not saved")

    def store_bytes(self, data: bytes) -> bytes:
        """Store a content that is in memory; return its digest. Raises NotSavedError, OSError."""
        digest = hashlib.sha256(data).digest()
        if (self._outbox / digest.hex()).exists():
            return digest
        self._make_room(len(data))

        def write(target: int) -> tuple[int, bytes]:
            _write_all(target, data)
            return len(data), digest

        return self._put(write)[1]

    def _copy(self, source: int, size: int) -> tuple[int, bytes]:
        self._make_room(size)
        return self._put(lambda target: self._copy_and_hash(source, target))

    def _make_room(self, size: int) -> None:
        """Prepare the outbox for a content. Raises NotSavedError if there is no room for it, and OSError."""
        check_root(self._places)
        ensure_private_dir(self._outbox)
        waiting = self._bytes_waiting()
        if waiting + size > self._outbox_bytes_max:
            limit = f"{self._outbox_bytes_max}, set by CHIPLOG_OUTBOX_BYTES_MAX"
            why = f"{waiting} bytes of files wait for the collector, with it they would be more than {limit}"
            raise NotSavedError("outbox_full", f"{why}; it is not saved")
        if (objection := insufficient_space_reason(self._outbox, size)) is not None:
            raise NotSavedError("outbox_full", f"{objection}; it is not saved")

    def _bytes_waiting(self) -> int:
        """Return the size of the outbox. Other processes fill it, and the agent empties it: it is looked at again."""
        seen_at, n_bytes = self._waiting
        if time.monotonic() - seen_at > _OUTBOX_AGE_S:
            n_bytes = _bytes_in(self._outbox)
            self._waiting = (time.monotonic(), n_bytes)
        return n_bytes

    def _put(self, write: Callable[[int], tuple[int, bytes]]) -> tuple[int, bytes]:
        """Make a content of the outbox. write: fills an open file, and returns the size and the digest."""
        new = self._outbox / f".new-{secrets.token_hex(8)}"
        target = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size, digest = write(target)
            os.rename(new, self._outbox / digest.hex())  # replaces a copy of the same content
        except BaseException:
            # safeguard: interrupt-passes-save
            new.unlink(missing_ok=True)  # a signal handler may raise after the rename too
            raise
        finally:
            os.close(target)
        self._waiting = (self._waiting[0], self._waiting[1] + size)
        return size, digest

    def _copy_and_hash(self, source: int, target: int) -> tuple[int, bytes]:
        """Copy and hash in one pass; if the file system can share blocks, only hash."""
        hasher = hashlib.sha256()
        size = 0
        try:
            fcntl.ioctl(target, _FICLONE, source)
            is_clone = True
        except unless_interrupt(OSError):  # another file system, or one that cannot share blocks
            is_clone = False
        while piece := os.read(target if is_clone else source, _PIECE_BYTES):
            size += len(piece)
            self._check_size(size)
            hasher.update(piece)
            if not is_clone:
                _write_all(target, piece)
        return size, hasher.digest()

    @staticmethod
    def _hash(source: str) -> tuple[int, bytes]:
        with open(source, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            return file.tell(), digest


def _write_all(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]


def _name_in_run(path: str) -> str:
    """Return a path's name in the run: relative to the working directory, or the last part if it is outside."""
    here, there = os.getcwd(), os.path.abspath(path)
    relative = os.path.relpath(there, here)
    return os.path.basename(there) if relative.split(os.sep)[0] == os.pardir else relative


def _home() -> str | None:
    """Return the user's home directory; None if there is none."""
    home = os.path.expanduser("~")
    return os.path.realpath(home) if os.path.isabs(home) else None


def _contains(directory: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Return True if `other` is the directory itself or is below it."""
    above, below = os.path.realpath(directory), os.path.realpath(other)
    return os.path.commonpath([above, below]) == above


def _bytes_in(outbox: Path) -> int:
    with os.scandir(outbox) as entries:
        total = 0
        for entry in entries:
            try:
                total += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # delivered just now
    return total
