"""How full the file systems are."""

import os
from collections.abc import Iterator, Mapping

from chiplog_agent.stats.source import HOST_DEVICE, AbsentError, Reading, Source
from chiplog_schemas.model.system_metrics import SLOW_S

_USAGE, _LIMIT = "system.filesystem.usage", "system.filesystem.limit"
_DEADLINE_S = 5.0  # a remote file system that hangs answers later, or never
_PATH_CHARS_MAX = 250  # the name of a device has at most 256
_PATHS_MAX = 16  # each has a thread


class RootFileSystemSource(Source):
    """The root file system, which is not remote in practice."""

    title = "file system /"

    def read(self) -> list[Reading]:
        """Ask the kernel for its blocks."""
        used, _ = _bytes("/")
        return [Reading(HOST_DEVICE, (_USAGE,), (used,))]


class FileSystemSource(Source):
    """The file system of a directory, as the device `fs:PATH`. It may be remote, and hang."""

    period_s = SLOW_S
    deadline_s = _DEADLINE_S

    def __init__(self, path: str, *, is_named: bool = True) -> None:
        """Read about a directory. is_named: by a user, who learns that it does not exist."""
        self.title = f"fs:{path}"
        self._path = path
        self._is_named = is_named

    def read(self) -> list[Reading]:
        """Ask the kernel for its blocks. Raises OSError, AbsentError."""
        try:
            return [Reading(self.title, (_USAGE, _LIMIT), _bytes(self._path))]
        except FileNotFoundError as error:
            if self._is_named:
                raise
            raise AbsentError from error


def file_system_sources(environ: Mapping[str, str]) -> Iterator[Source]:
    """Yield the sources of the directories that a training writes to, and of those in CHIPLOG_FILE_SYSTEMS."""
    named = [path.strip() for path in environ.get("CHIPLOG_FILE_SYSTEMS", "").split(os.pathsep)]
    usual = [environ.get("CHIPLOG_DIR", ""), environ.get("TMPDIR", "/tmp"), "/dev/shm"]
    for path in list(dict.fromkeys(path for path in (*usual, *named) if path))[:_PATHS_MAX]:
        if len(path) <= _PATH_CHARS_MAX:
            yield FileSystemSource(path, is_named=path in named)


def _bytes(path: str) -> tuple[float, float]:
    """Return the used bytes, and all of them."""
    blocks = os.statvfs(path)
    return float((blocks.f_blocks - blocks.f_bfree) * blocks.f_frsize), float(blocks.f_blocks * blocks.f_frsize)
