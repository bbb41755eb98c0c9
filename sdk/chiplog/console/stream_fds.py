"""The descriptors of a captured stream: a pipe or a pseudo-terminal that replaces it."""

import contextlib
import fcntl
import os
import termios

# Capacity of each pipe, for bursts while the helper starts. Not the 1 MiB that a pipe may have: all pipes of a user
# share 64 MiB (pipe-user-pages-soft). Beyond that each new pipe, a DataLoader's too, holds one page.
PIPE_BYTES = 256 << 10
_TERMINAL_BYTES = 4096  # N_TTY_BUF_SIZE: a pseudo-terminal holds at least this
MESSAGE_BYTES_MAX = 65_536  # between a rank and its helper: paths and bounds, never output
FIRST = 3  # lower descriptors belong to the standard streams, even if closed
# Captured streams that a forked child inherited, for its own init(): the pipe's inode and the original target.
inherited_pipes: dict[int, tuple[tuple[int, int], int]] = {}


class StreamFds:
    """The descriptors of one captured stream. target: what the stream was before.

    source: a pipe's read end, or a pseudo-terminal's master, non-blocking. name: of the pseudo-terminal, else "".
    A plain class: importing dataclasses would cost each helper a third more memory.
    """

    __slots__ = ("name", "source", "stream", "target")

    def __init__(self, stream: int, source: int, target: int, name: str = "") -> None:
        self.stream = stream
        self.source = source
        self.target = target
        self.name = name

    @property
    def fds(self) -> tuple[int, int]:
        """Both descriptors."""
        return self.source, self.target

    def to_helper_args(self, given: dict[int, int]) -> tuple[int, int, int, str]:
        """Return the constructor's arguments for a process where the descriptors have other numbers."""
        return self.stream, given[self.source], given[self.target], self.name

    @property
    def capacity_bytes(self) -> int:
        """How much the process can write before it blocks. Raises OSError."""
        return _TERMINAL_BYTES if self.name else fcntl.fcntl(self.source, fcntl.F_GETPIPE_SZ)

    def sync_window_size(self) -> bool:
        """Copy the terminal's size to the pseudo-terminal; return True if it changed."""
        try:
            return bool(self.name) and copy_size(self.target, self.source)
        except OSError:
            return False  # the terminal is gone


def open_stream_fds(stream: int) -> tuple[StreamFds, int]:
    """Return the ends of a pipe or pseudo-terminal for a stream, and the descriptor to put in its place."""
    opened: list[int] = []

    def keep(descriptor: int) -> int:
        opened.append(dup_above_stdio(descriptor))
        return opened[-1]

    try:
        inode, before = inherited_pipes.get(stream, ((0, 0), stream))
        # In a forked child of a captured process: write to the parent's original target, not into the parent's pipe.
        target = keep(fcntl.fcntl(before if fd_identity(stream) == inode else stream, fcntl.F_DUPFD_CLOEXEC, FIRST))
        is_terminal = os.isatty(target)
        source, replacement = (keep(end) for end in (os.openpty() if is_terminal else os.pipe()))
        os.set_blocking(source, False)
        if is_terminal:
            _copy_modes(target, replacement)
            copy_size(target, replacement)
            return StreamFds(stream, source, target, os.ttyname(replacement)), replacement
        with contextlib.suppress(OSError):  # beyond this user's limit: the pipe keeps its size
            fcntl.fcntl(replacement, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return StreamFds(stream, source, target), replacement
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise


def _copy_modes(terminal: int, slave: int) -> None:
    """Copy a terminal's modes to a pseudo-terminal, without output processing: the real terminal does that.

    A program that reads keys there changes these modes and restores them. terminal.py follows these changes.
    """
    modes = termios.tcgetattr(terminal)
    modes[1] &= ~termios.OPOST
    modes[3] |= termios.ICANON | termios.ECHO  # even if a program left the terminal without them
    termios.tcsetattr(slave, termios.TCSANOW, modes)


def copy_size(terminal: int, other: int) -> bool:
    """Copy a terminal's window size to another one; return True if it changed. Raises OSError."""
    size = fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8)
    if size == fcntl.ioctl(other, termios.TIOCGWINSZ, b"\0" * 8):
        return False
    fcntl.ioctl(other, termios.TIOCSWINSZ, size)
    return True


def dup_above_stdio(descriptor: int) -> int:
    """Return a descriptor outside the numbers of the standard streams."""
    if descriptor >= FIRST:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST)
    finally:
        os.close(descriptor)


def fd_identity(descriptor: int) -> tuple[int, int]:
    """Return what a descriptor is open on, as (device, inode)."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return (-1, -1)
    return (status.st_dev, status.st_ino)
