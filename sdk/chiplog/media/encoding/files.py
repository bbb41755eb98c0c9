"""Read a file that a user logs, at once and whole."""

import os
import stat
from typing import Any

from chiplog.safety.text import short_repr
from chiplog.values.media_value import MediaError
from chiplog_schemas.interrupts import raise_interrupt
from chiplog_schemas.limits import MEDIA_BYTES_MAX

_READ_BYTES = 1 << 20


def is_path(value: Any) -> bool:
    """Return True if a value names a file."""
    return isinstance(value, str | os.PathLike)


def read_file(path: "str | os.PathLike[str]") -> bytes:
    """Return the bytes of a regular file. Raises MediaError that names the file and the remedy."""
    name = os.fspath(path)
    if isinstance(name, str) and "://" in name:
        raise MediaError(f"{short_repr(name)} is a URL, which chiplog does not download; log a local file")
    try:
        # A FIFO must not make the training wait for its other end.
        fd = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        raise_interrupt(error)
        reason = getattr(error, "strerror", None) or str(error)
        raise MediaError(f"the file {short_repr(name)} cannot be opened: {reason}") from None
    try:
        return _read(fd, name)
    except OSError as error:
        raise_interrupt(error)
        raise MediaError(f"the file {short_repr(name)} cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)


def extension_of(path: "str | os.PathLike[str]") -> str:
    """Return the last extension of a path, in lower case and without its dot."""
    return os.path.splitext(os.fsdecode(path))[1][1:].lower()


def read_stream(stream: Any) -> bytes:
    """Return all that an open file holds, as bytes."""
    if hasattr(stream, "seek"):
        stream.seek(0)
    data = stream.read()
    return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)


def _read(fd: int, name: Any) -> bytes:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "a FIFO, socket or device"
        raise MediaError(f"{short_repr(name)} is {kind}; log a regular file")
    parts: list[bytes] = []
    size = 0
    while part := os.read(fd, _READ_BYTES):
        size += len(part)
        if size > MEDIA_BYTES_MAX:
            size = max(size, found.st_size)
            message = f"the file {short_repr(name)} has {size} bytes, the limit is {MEDIA_BYTES_MAX}; use save()"
            raise MediaError(message)
        parts.append(part)
    if not size:
        raise MediaError(f"the file {short_repr(name)} is empty; log it after it is written")
    return b"".join(parts)
