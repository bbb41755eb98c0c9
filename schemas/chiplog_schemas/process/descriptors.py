"""Descriptors that other code of the process may close at any moment, so that their numbers are reused.

A training is such a process: code that turns it into a daemon calls `os.closerange(3, 65536)`. Afterwards the number
may belong to another file, which chiplog must neither write to nor close.
"""

import errno
import mmap
import os
import sys
from functools import cache
from typing import Any

_MAP_FIXED = 0x10  # the same in Linux and macOS


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


def map_file(descriptor: int, size: int) -> mmap.mmap:
    """Map the first `size` bytes of a file, shared and writable. The mapping keeps no descriptor, so it has no size().

    Before Python 3.13 a mapping keeps one, by number, and closes it when it is deleted. If the training has closed it
    and opened files since, that would close one of these. A finaliser that prevents this would be Python code: a signal
    handler may run in it, and what the handler raises there is lost.

    Raises:
        OSError: The file cannot be mapped.
        ValueError: The file is shorter than `size`.
    """
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, size, trackfd=False)
    try:
        import ctypes  # imported late: daemons do without it
    except ImportError:  # a Python that was built without libffi
        return mmap.mmap(descriptor, size)
    if os.fstat(descriptor).st_size < size:
        raise ValueError(f"the file is shorter than {size} bytes")
    memory = mmap.mmap(-1, size)  # safeguard: mapping-spares-foreign-descriptor
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _mmap_of_libc()(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return memory


@cache
def _mmap_of_libc() -> Any:
    import ctypes

    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    number = ctypes.c_int
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
    return function


def never_destroy(kept: object) -> None:
    """Keep an object and what it holds in memory forever, also when Python shuts down."""
    import ctypes  # imported late: almost no process needs it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _file_of(number: int) -> tuple[int, int] | None:
    try:
        about = os.fstat(number)
    except OSError:
        return None
    return about.st_dev, about.st_ino
