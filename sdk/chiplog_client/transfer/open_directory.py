"""A directory whose files DuckDB opens by a descriptor of the directory, whatever the directory is called.

DuckDB reads a path as a pattern (`*?[`), takes columns from `key=value` in it, and replaces `~`, `file:` and
backslashes. None of these can be escaped reliably. `/proc/self/fd/N/NAME` has none of them.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


class OpenDirectory:
    """An open directory. Use it as a context manager. The names of files are chiplog's own."""

    def __init__(self, path: Path) -> None:
        """Open the directory. Raises OSError."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> "OpenDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def open(self, name: str) -> BufferedReader:
        """Open a regular file at a relative path. Raises OSError, also if a part of the path is a link."""
        *parents, last = name.split("/")
        directory = os.dup(self._descriptor)
        try:
            for parent in parents:
                above, directory = directory, _open_in(directory, parent, os.O_DIRECTORY)
                os.close(above)
            # O_NONBLOCK: opening a pipe would wait for its other end.
            descriptor = _open_in(directory, last, os.O_NONBLOCK)  # safeguard: export-pipe-not-awaited
        finally:
            os.close(directory)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        return os.fdopen(descriptor, "rb")

    def place(self, name: str) -> str:
        """Return the path of a file or directory in it for DuckDB."""
        directory = f"/proc/self/fd/{self._descriptor}"  # safeguard: export-opened-by-descriptor
        return f"{directory}/{name}"

    def target(self, name: str) -> str:
        """Return the target of a COPY in SQL."""
        return "'" + self.place(name).replace("'", "''") + "'"

    def rows(self, *names: str) -> str:
        """Return the rows of Parquet files in SQL, in this order."""
        return f"read_parquet([{', '.join(map(self.target, names))}], hive_partitioning = false)"


def _open_in(directory: int, name: str, flags: int) -> int:
    try:
        # safeguard: export-link-refused
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, dir_fd=directory)
    except ValueError as error:  # a null byte
        raise OSError(errno.EINVAL, "it is not a path", name) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and stat.S_ISLNK(
            os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        ):
            raise OSError(error.errno, f"{name} is a link, which is not followed", name) from error
        raise
