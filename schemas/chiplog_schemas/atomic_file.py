"""Files that readers see completely or not at all, and names that survive a power failure.

Writers that do not hold the whole content use this order themselves: a result or a saved file that is streamed, a
database that DuckDB creates, a directory.
"""

import errno
import os
from pathlib import Path

# Of link(2), on a file system without hard links: s3fs, exFAT, some shares of virtual machines.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


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
            _link_or_create(temporary, path, content)
        if durable:
            sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _link_or_create(temporary: Path, path: Path, content: bytes) -> None:
    """Give a complete file its name. Raises FileExistsError if another file has it, OSError."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # For a moment a reader may see a part of the content.
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                path.unlink(missing_ok=True)
                raise


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
        sync_file(staging)  # the original may be deleted now
        os.rename(staging, target)
    finally:
        staging.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Make the content of a file durable. Raises OSError."""
    _sync(path, os.O_RDONLY | os.O_CLOEXEC)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names durable. Raises OSError."""
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
