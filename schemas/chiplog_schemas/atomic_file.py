"""Files that readers see completely or not at all, and names that survive a power failure.

Writers that do not hold the whole content use this order themselves: a result or a saved file that is streamed, a
database that DuckDB creates, a directory.
"""

import os
from pathlib import Path


def atomic_write(path: Path, content: bytes, *, durable: bool = False, replaces: bool = True) -> None:
    """Write a file that only this user can read, under a temporary name, and rename it to `path`. Raises OSError.

    durable: sync the file and its name. Leave it out for what is written again anyway: a status, a cache. replaces: if
    False, raise FileExistsError when the file exists.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    # safeguard: secret-key-private
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(descriptor)
        if replaces:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
        if durable:
            sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
