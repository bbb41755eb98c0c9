"""The descriptors of a captured stream: a pipe or a pseudo-terminal that replaces it."""

import contextlib
import fcntl
import os
import termios

# Capacity of each pipe, for bursts while the helper starts. Not the 1 MiB that a pipe may have: all pipes of a user
# share 64 MiB (pipe-user-pages-soft). Beyond that each new pipe, a DataLoader's too, holds one page.
PIPE_BYTES = 256 << 10
FIRST = 3  # lower descriptors belong to the standard streams, even if closed
# Captured streams that a forked child inherited, for its own init(): the pipe's inode and the original target.
inherited_pipes: dict[int, tuple[tuple[int, int], int]] = {}


class StreamFds:
    """The descriptors of one captured stream. source: a pipe's read end. target: what the stream was before.

    For a terminal also the pseudo-terminal's master and name, and feed, the pipe's write end; -1 and "" otherwise.
    A plain class: importing dataclasses would cost each helper a third more memory.
    """

    __slots__ = ("feed", "master", "name", "source", "stream", "target")

    def __init__(self, stream: int, source: int, target: int, master: int = -1, feed: int = -1, name: str = "") -> None:
        self.stream = stream
        self.source = source
        self.target = target
        self.master = master
        self.feed = feed
        self.name = name

    @property
    def fds(self) -> tuple[int, ...]:
        """All open descriptors."""
        return tuple(number for number in (self.source, self.target, self.master, self.feed) if number >= 0)

    def to_helper_args(self, given: dict[int, int]) -> dict[str, int | str]:
        """Return the constructor's arguments for a process where the descriptors have other numbers."""
        there = {-1: -1, **given}
        return {
            "stream": self.stream,
            "source": there[self.source],
            "target": there[self.target],
            "master": there[self.master],
            "feed": there[self.feed],
            "name": self.name,
        }

    @property
    def poll_fd(self) -> int:
        """The descriptor to poll for what the process writes."""
        return self.source if self.master < 0 else self.master

    def sync_window_size(self) -> bool:
        """Copy the terminal's size to the pseudo-terminal; return True if it changed."""
        try:
            return self.master >= 0 and copy_size(self.target, self.master)
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
        source, feed = (keep(end) for end in os.pipe())
        if not os.isatty(target):
            with contextlib.suppress(OSError):  # beyond this user's limit: the pipe keeps its size
                fcntl.fcntl(feed, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            return StreamFds(stream, source, target), feed
        master, slave = (keep(end) for end in os.openpty())
        _copy_modes(target, slave)
        copy_size(target, slave)
        os.set_blocking(master, False)
        return StreamFds(stream, source, target, master, feed, os.ttyname(slave)), slave
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
