"""Forward the real terminal's keys to a child that reads them from the pseudo-terminal.

`less` reads its keys from the terminal of its stderr, which it opens by name: that is the pseudo-terminal. Such a
program first changes the terminal's modes, and restores them when it exits. So each change of modes is applied to the
real terminal too. While the program reads from the pseudo-terminal, the real terminal's keys are forwarded to it.
`vim`, `nano` and `pdb` read their keys from stdin, which is the real terminal: they need the modes at most.

The kernel stops a background process that changes its terminal, but not the helper, which is in another session. So the
helper changes nothing unless a process of the training is in the foreground.
"""

import contextlib
import fcntl
import os
import signal
import termios
from collections import deque
from collections.abc import Iterator

from chiplog.console.stream_fds import StreamFds
from chiplog_schemas.process.procfs import FOREGROUND_GROUP, GROUP, START, read_proc_stat, uptime_us

_KEYS_BYTES_MAX = 1_024  # of one read; a terminal's queue holds 4096
_MODES_BYTES = 64  # the kernel's struct termios has 36
_POLL_INTERVAL_S = 0.25  # between two checks for a reader, while a program has changed the modes
_PROCESSES_MAX = 1_000  # examined; a training with more children has no pager in the foreground
_START_S = 10.0  # a program that reads its keys from stderr changes the modes within this
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_EDITING = termios.ICANON | termios.ECHO  # what a program that reads keys switches off


def foreground_of(rank: int) -> list[int]:
    """Return the processes of the rank that are in the foreground of its terminal."""
    fields = read_proc_stat(rank)
    if len(fields) <= FOREGROUND_GROUP or (group := int(fields[FOREGROUND_GROUP])) <= 0:
        return []
    return [pid for pid in (rank, *_descendants(rank)) if _group_of(pid) == group]


def signal_resize(rank: int) -> None:
    """Send SIGWINCH to the foreground programs: the kernel's came before the pseudo-terminal had the new size."""
    if processes := foreground_of(rank):
        with contextlib.suppress(OSError):  # they have just ended
            os.killpg(_group_of(processes[0]), signal.SIGWINCH)


class Keyboard:
    """The keys of one captured terminal. rank: the PID of the process whose stream it is."""

    def __init__(self, fds: StreamFds, rank: int) -> None:
        self.descriptor = -1  # the real terminal, while its keys are forwarded; the helper polls it
        self._fds = fds
        self._rank = rank
        self._modes = b""  # of the pseudo-terminal, at the last check
        self._is_changed = False  # by a program that reads keys
        self._changed_at_s = 0.0  # since the boot
        self._is_mirrored = False
        self._next_poll_s = 0.0

    def poll_modes(self, now: float) -> None:
        """Check the pseudo-terminal's modes and whether a program reads from it. Sets `descriptor`."""
        try:
            modes = fcntl.ioctl(self._fds.source, termios.TCGETS, bytes(_MODES_BYTES))
            if modes != self._modes:
                self._modes, self._next_poll_s, self._changed_at_s = modes, now, uptime_us() / 1e6
                self._is_changed = termios.tcgetattr(self._fds.source)[3] & _EDITING != _EDITING
                self._follow()
            elif self._is_changed and now >= self._next_poll_s:
                self._follow()
            self._next_poll_s = max(self._next_poll_s, now + _POLL_INTERVAL_S) if self._is_changed else now
        except (OSError, termios.error):
            self.close()  # the terminal is closed

    def pass_on(self) -> None:
        """Forward pressed keys to the program."""
        try:
            keys = os.read(self.descriptor, _KEYS_BYTES_MAX)
            if keys:
                os.write(self._fds.source, keys)  # safeguard: pager-gets-keys
            else:
                self.close()
        except BlockingIOError:
            pass  # another reader was first, or the program's queue is full: a terminal drops keys too
        except OSError:
            self.close()

    def close(self) -> None:
        """Stop forwarding keys."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _follow(self) -> None:
        """Make the real terminal's modes and the forwarding of keys match the pseudo-terminal's modes."""
        processes = foreground_of(self._rank) if self._is_changed else []  # safeguard: background-leaves-terminal
        reads = any(map(self._is_reader, processes))
        if reads and self.descriptor < 0:
            self.descriptor = _opened(self._fds.target)
        elif not reads:
            self.close()
        if processes or (self._is_mirrored and not self._is_changed):
            self._mirror(is_read=reads)

    def _mirror(self, *, is_read: bool) -> None:
        """Copy the pseudo-terminal's modes to the real terminal."""
        wanted, before = termios.tcgetattr(self._fds.source), termios.tcgetattr(self._fds.target)
        wanted[1] |= before[1] & termios.OPOST  # the real terminal processes the output
        if is_read:
            wanted[3] &= ~termios.ECHO  # the pseudo-terminal echoes forwarded keys, if echo is on
        wanted[2], wanted[4], wanted[5] = before[2], before[4], before[5]  # speed and character size
        if wanted != before:  # safeguard: terminal-follows-child-modes
            termios.tcsetattr(self._fds.target, termios.TCSANOW, wanted)
        self._is_mirrored = self._is_changed

    def _is_reader(self, pid: int) -> bool:
        """Return True if a foreground process reads the pseudo-terminal.

        It has the terminal as stdin (`vim -`), has opened it read-only (`less`), or has another stdin and was started
        just before the modes changed (`more`, which reads stderr).
        """
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):  # safeguard: keys-left-to-reading-child
                if os.readlink(f"/proc/{pid}/fd/{number}") == self._fds.name and (
                    number == "0" or _is_read_only(pid, number) or (number == "2" and self._is_young_without_keys(pid))
                ):
                    return True
        except OSError:
            pass  # it has just ended, or is another user's
        return False

    def _is_young_without_keys(self, pid: int) -> bool:
        fields = read_proc_stat(pid)
        if len(fields) <= START or int(fields[START]) / _TICKS_PER_S < self._changed_at_s - _START_S:
            return False
        return not os.readlink(f"/proc/{pid}/fd/0").startswith(("/dev/pts/", "/dev/tty", "/dev/console"))


def _opened(target: int) -> int:
    """Open the terminal non-blocking. `target` itself cannot be made so: other processes share its description."""
    try:
        return os.open(f"/proc/self/fd/{target}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except PermissionError:  # after `su`: the terminal is another user's
        return fcntl.fcntl(target, fcntl.F_DUPFD_CLOEXEC, 3)


def _is_read_only(pid: int, number: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as about:
        flags = next(line.split()[1] for line in about if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE == os.O_RDONLY


def _group_of(pid: int) -> int:
    fields = read_proc_stat(pid)
    return int(fields[GROUP]) if len(fields) > GROUP else 0


def _descendants(pid: int) -> Iterator[int]:
    """Yield the PIDs of a process's children, and of theirs, up to a bound."""
    waiting, n_left = deque([pid]), _PROCESSES_MAX
    while waiting and n_left > 0:
        for child in _children(waiting.popleft()):
            n_left -= 1
            waiting.append(child)
            yield child


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has just ended; or a kernel without this file
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
                found += map(int, children.read().split())
    return found
