"""A directory whose files DuckDB opens by a descriptor of the directory, whatever the directory is called.

DuckDB reads a path as a pattern (`*?[`), takes columns from `key=value` in it, and replaces `~`, `file:` and
backslashes. None of these can be escaped reliably. `/proc/self/fd/N/NAME` has none of them.
"""

import os
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
