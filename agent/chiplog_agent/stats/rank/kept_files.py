"""Files of /proc that stay open between samples: a read alone costs a third of opening, reading and closing."""

import os
import resource

_READ_BYTES_MAX = 65_536  # of children: 8,000 processes
_LAST_BYTES_MAX = 2048  # a read returns a page at most, of at least twice this: one of less was the last
_KEPT_MAX = 512  # eight ranks with twenty workers each, three files of each process
_KEPT_SHARE = 4  # and at most a quarter of what this process may open: an embedded agent needs the rest


def read_all(descriptor: int) -> bytes:
    """Return the content of a file of /proc, page by page. Raises OSError."""
    data = part = os.pread(descriptor, _READ_BYTES_MAX, 0)
    while len(part) > _LAST_BYTES_MAX and len(data) < _READ_BYTES_MAX:
        part = os.pread(descriptor, _READ_BYTES_MAX, len(data))
        data += part
    return data


class KeptFiles:
    """Reads files by path. Those that were not read between two calls of `sweep` are closed."""

    def __init__(self) -> None:
        self._kept_max = min(_KEPT_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _KEPT_SHARE)
        self._fresh: dict[str, int] = {}  # path → descriptor, of what was read since the last sweep
        self._former: dict[str, int] = {}  # … and before

    def read(self, path: str) -> bytes:
        """Return the content of a file of a process; nothing once it has ended, whichever process has its PID now."""
        descriptor = self._fresh.pop(path, -1)
        if descriptor < 0:
            descriptor = self._former.pop(path, -1)
        try:
            if descriptor < 0:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            data = read_all(descriptor)
        except OSError:  # ESRCH of an open file: its process has ended
            if descriptor >= 0:
                os.close(descriptor)
            return b""
        if len(self._fresh) + len(self._former) < self._kept_max:
            self._fresh[path] = descriptor
        else:
            os.close(descriptor)  # safeguard: kept-files-bounded
        return data

    def sweep(self) -> None:
        """Close what was not read since the last call."""
        for descriptor in self._former.values():
            os.close(descriptor)  # safeguard: unread-files-closed
        self._former, self._fresh = self._fresh, {}

    def __del__(self) -> None:
        """Close all: an embedded agent may have several samplers, one after the other."""
        self.sweep()
        self.sweep()
