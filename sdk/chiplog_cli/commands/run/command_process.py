"""Run a command as a child process, forward signals to it, and wait for its end.

The command stays in the process group of this process. So Ctrl-C, Ctrl-Z and everything else that is sent to the group
reaches it directly, and only signals that were sent to this process alone are forwarded.
"""

import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes as of shells, env(1) and timeout(1)
_FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
_WAITED = _FORWARDED | {signal.SIGCHLD}
# si_code of a signal that the kernel sent, as for Ctrl-C: the whole foreground group has it (sigaction(2)).
_SI_KERNEL = 0x80


class CommandError(Exception):
    """The command cannot be started. exit_code: NOT_FOUND or NOT_EXECUTABLE."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def find_program(name: str, path: str | None = None) -> str:
    """Return the file of a program. path: as of the variable PATH. Raises CommandError."""
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    if os.path.dirname(name) and os.path.exists(name):
        why = "is a directory" if os.path.isdir(name) else "is not executable; chmod +x it, or name its interpreter"
        raise CommandError(f"program {name!r} {why}", NOT_EXECUTABLE)
    raise CommandError(f"program {name!r} was not found; check its name and PATH", NOT_FOUND)


class SignalForwarder:
    """Holds back signals from its construction on, for `run`. Construct it before anything that starts threads."""

    def __init__(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, no exit status can be read
        self._mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)

    def run(self, program: str, command: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run a command to its end and return its exit code, -n if signal n ended it. Raises CommandError."""
        pending = sorted(signal.sigpending() & _FORWARDED)
        if pending:
            return -int(pending[0])  # the command would not get a Ctrl-C of a moment ago
        try:
            # posix_spawn and not fork: other threads of this process hold locks.
            pid = os.posix_spawn(
                program,
                list(command),
                dict(environ),
                setsigmask=self._mask_before,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them
            )
        except OSError as error:
            code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
            why = "no interpreter: begin it with #!" if error.errno == errno.ENOEXEC else error.strerror
            raise CommandError(f"program {program!r} cannot be started: {why}", code) from error
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            sent = signal.sigwaitinfo(_WAITED)
            # safeguard: ctrl-c-delivered-once
            if sent.si_signo in _FORWARDED and sent.si_code != _SI_KERNEL:
                os.kill(pid, sent.si_signo)  # not reaped yet, so it is still its PID
