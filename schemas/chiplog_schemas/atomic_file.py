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


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it durably where that is impossible. `target` is replaced. Raises OSError."""
    staging = target.with_name(f".new-{target.name}")
    staging.unlink(missing_ok=True)
    try:
        try:
            os.link(source, staging)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            copy_durably(source, target)
        else:
            os.rename(staging, target)
    finally:
        staging.unlink(missing_ok=True)  # needed if both names link to the same file: then rename() does nothing


def copy_durably(source: Path, target: Path) -> None:
    """Copy a file for this user, and sync its content before it gets its name. `target` is replaced. Raises OSError."""
    import shutil  # 5 ms, and a training never copies

    staging = target.with_name(f".new-{target.name}")
    try:
        shutil.copyfile(source, staging)
        staging.chmod(0o600)
        with staging.open("rb") as copy:
            os.fsync(copy.fileno())  # the original may be deleted now
        os.rename(staging, target)
    finally:
        staging.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
