"""Open the descriptors of a captured stream: a pipe or a pseudo-terminal that replaces it."""

import contextlib
import fcntl
import os
import termios

from chiplog.console.relay import StreamFds, copy_size

# Capacity of each pipe, for bursts while the helper starts. Not the 1 MiB that a pipe may have: all pipes of a user
# share 64 MiB (pipe-user-pages-soft). Beyond that each new pipe, a DataLoader's too, holds one page.
PIPE_BYTES = 256 << 10
FIRST = 3  # lower descriptors belong to the standard streams, even if closed
# Captured streams that a forked child inherited, for its own init(): the pipe's inode and the original target.
inherited_pipes: dict[int, tuple[tuple[int, int], int]] = {}


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
