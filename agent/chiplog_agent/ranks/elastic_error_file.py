"""Torchelastic's error files, read by a thread that a hung file system may keep: the loop goes on without it.

The path is whatever a rank says. So the file is looked at before it is opened, and has to be the rank's own.
"""

import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

_BYTES_MAX = 262_144  # of an error file: a traceback with room; a larger one is something else
_WAIT_S = 0.5  # in one turn of the loop, for all files in sum: on a disk that hangs they are done without
_MESSAGE_CHARS_MAX = 1_000
_TRACEBACK_CHARS_MAX = 16_384  # its end: there stands what happened
_CLOCK_SLACK_S = 2.0  # whole seconds of a file's time, and a clock that was set a little


class ElasticErrorFileReader:
    """Reads error files one at a time. While one hangs, no other is read."""

    def __init__(self) -> None:
        self._reader: threading.Thread | None = None
        self._left_s = _WAIT_S

    def begin_turn(self) -> None:
        """Let the next turn of the loop wait for files anew."""
        self._left_s = _WAIT_S

    def read(self, path: str, journal: Path, started_us: int) -> dict[str, Any]:
        """Return message and traceback of an error file; nothing where there is none that can be had in time.

        journal: the rank's own; whoever owns it has to own the file. started_us: an older file is of another rank.
        """
        if self._left_s <= 0 or (self._reader is not None and self._reader.is_alive()):
            return {}
        found: list[dict[str, Any]] = []
        reader = threading.Thread(target=lambda: found.append(_read(path, journal, started_us)), daemon=True)
        begun = time.monotonic()
        try:
            reader.start()
        except RuntimeError:
            return {}  # no thread is to be had
        self._reader = reader
        reader.join(self._left_s)
        self._left_s -= time.monotonic() - begun
        return found[0] if found else {}


def _read(path: str, journal: Path, started_us: int) -> dict[str, Any]:
    """Read `{"message": {"message": …, "extraInfo": {"py_callstack": …}}}`: torch.distributed.elastic, ErrorHandler."""
    try:
        text = _bytes_of(path, os.stat(journal).st_uid, started_us / 1e6 - _CLOCK_SLACK_S)
        said = json.loads(text)["message"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    if isinstance(said, str):
        return {"message": said[:_MESSAGE_CHARS_MAX], "error_file": path}
    if not isinstance(said, dict):
        return {}
    extra = said.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    error = {"message": str(said.get("message") or "")[:_MESSAGE_CHARS_MAX], "error_file": path}
    if isinstance(stack, str) and stack:
        error["traceback"] = stack[-_TRACEBACK_CHARS_MAX:]
    return error


def _bytes_of(path: str, uid: int, since_s: float) -> bytes:
    """Return what stands in a regular file of a user; nothing of another one. Raises OSError.

    O_PATH opens nothing: a terminal, a tape or a pipe's writer would notice. What it found is what is opened then.
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
