"""Descriptors that other code of the process may close at any moment, so that their numbers are reused.

A training is such a process: code that turns it into a daemon calls `os.closerange(3, 65536)`. Afterwards the number
may belong to another file, which chiplog must neither write to nor close.
"""

import errno
import mmap
import os


class OwnedDescriptor:
    """A descriptor, identified by its number and by the file that it was opened on."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._file = _file_of(number)

    @property
    def is_ours(self) -> bool:
        """Return True if the number still belongs to the file that it was opened on."""
        return self.number >= 0 and self._file is not None and _file_of(self.number) == self._file

    def check(self) -> None:
        """Raise OSError if other code has closed it: then the last operation on the number went to another file."""
        if not self.is_ours:
            raise OSError(errno.EBADF, "a descriptor was closed by other code of this process")

    def close(self) -> None:
        """Close it, unless other code has."""
        number, is_ours = self.number, self.is_ours
        self.number = -1
        if is_ours:
            os.close(number)


class Mapped(mmap.mmap):
    """A mapped file that never closes a descriptor of the training.

    A mapping keeps a descriptor, by number, and closes it when it is deleted. If the training has closed it and opened
    files since, that would close one of these: the mapping is then kept forever.
    """

    def __del__(self) -> None:
        try:
            is_ours = self.closed or self.size() == len(self)  # size of the file that has the number now
        except (OSError, ValueError):
            is_ours = False
        if not is_ours:  # safeguard: mapping-spares-foreign-descriptor
            never_destroy(self)


def never_destroy(kept: object) -> None:
    """Keep an object and what it holds in memory for ever, also when Python shuts down."""
    import ctypes  # imported late: almost no process needs it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _file_of(number: int) -> tuple[int, int] | None:
    try:
        about = os.fstat(number)
    except OSError:
        return None
    return about.st_dev, about.st_ino
