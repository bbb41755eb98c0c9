"""Torchelastic's error files, read by a thread, so that a hung file system does not stop the loop.

The rank chooses the path. So the file is checked before it is opened, and must belong to the rank's user.
"""

import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

_BYTES_MAX = 262_144  # of an error file: enough for any traceback; a larger file is something else
_WAIT_S = 0.5  # in one turn of the loop, for all files together; a disk that hangs gets no more time
_MESSAGE_CHARS_MAX = 1_000
_TRACEBACK_CHARS_MAX = 16_384  # the tail, which has the cause
_CLOCK_SLACK_S = 2.0  # file times in whole seconds, and a small clock change


class ElasticErrorFileReader:
    """Reads error files one at a time. While one hangs, no other is read."""

    def __init__(self) -> None:
        self._reader: threading.Thread | None = None
        self._left_s = _WAIT_S

    def begin_turn(self) -> None:
        """Reset the time limit for the next turn of the loop."""
        self._left_s = _WAIT_S

    def read(self, path: str, journal: Path, started_us: int) -> dict[str, Any]:
        """Return message and traceback of an error file; nothing if there is none that can be read in time.

        journal: the rank's own; both must have the same owner. started_us: an older file belongs to another rank.
        """
        if self._left_s <= 0 or (self._reader is not None and self._reader.is_alive()):
            return {}
        found: list[dict[str, Any]] = []
        reader = threading.Thread(target=lambda: found.append(_read(path, journal, started_us)), daemon=True)
        begun = time.monotonic()
        try:
            reader.start()
        except RuntimeError:
            return {}  # no thread can be started
        self._reader = reader
        reader.join(self._left_s)
        self._left_s -= time.monotonic() - begun
        return found[0] if found else {}


def _read(path: str, journal: Path, started_us: int) -> dict[str, Any]:
    """Read `{"message": {"message": …, "extraInfo": {"py_callstack": …}}}`: torch.distributed.elastic, ErrorHandler."""
    try:
        text = _bytes_of(path, os.stat(journal).st_uid, started_us / 1e6 - _CLOCK_SLACK_S)
        message = json.loads(text)["message"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    if isinstance(message, str):
        return {"message": message[:_MESSAGE_CHARS_MAX], "error_file": path}
    if not isinstance(message, dict):
        return {}
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    error = {"message": str(message.get("message") or "")[:_MESSAGE_CHARS_MAX], "error_file": path}
    if isinstance(stack, str) and stack:
        error["traceback"] = stack[-_TRACEBACK_CHARS_MAX:]
    return error


def _bytes_of(path: str, uid: int, since_s: float) -> bytes:
    """Return the content of a regular file of a user; nothing of another file. Raises OSError.

    O_PATH does not open the file, which a terminal, a tape or the writer of a pipe would notice. The same file is
    opened after the check.
    """
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        about = os.fstat(found)
        is_its_own = stat.S_ISREG(about.st_mode) and about.st_uid == uid
        if not is_its_own or about.st_mtime < since_s or about.st_size > _BYTES_MAX:
            return b""
        with open(f"/proc/self/fd/{found}", "rb", buffering=0) as file:
            return file.read(_BYTES_MAX) or b""
    finally:
        os.close(found)
