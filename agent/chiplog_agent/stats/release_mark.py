"""Whether an operator has asked an agent to leave its node's GPUs closed: a file in the agent's directory."""

import os
from pathlib import Path

from chiplog_schemas.paths import GPUS_RELEASED

_CLOSED = "closed\n"


class ReleaseMark:
    """The file, which outlives agents and restarts. folder: the agent's. Methods that write raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / GPUS_RELEASED
        self._was_set = False

    @property
    def is_set(self) -> bool:
        """Whether the GPUs shall be closed; the last answer while the directory cannot be read."""
        try:
            os.stat(self._path)
        except FileNotFoundError:
            self._was_set = False
        except OSError:
            pass  # a remote directory that is out of reach
        else:
            self._was_set = True
        return self._was_set

    @property
    def is_confirmed(self) -> bool:
        """Whether an agent has closed them."""
        try:
            return self._path.read_text(encoding="utf-8") == _CLOSED
        except OSError:
            return False

    def set(self) -> None:
        """Ask for it. A confirmation stays: a later agent keeps the GPUs closed."""
        self._path.touch(mode=0o600)

    def confirm(self) -> None:
        """Record that the GPUs are closed, unless the request was withdrawn."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, _CLOSED.encode())
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Withdraw the request."""
        self._path.unlink(missing_ok=True)
