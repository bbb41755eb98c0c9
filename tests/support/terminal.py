"""A command on a pseudo-terminal that stays: its keys, its size, and what it shows."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.support.command_line import CLI, environment
from tests.support.waiting import WAIT_S

# Takes the terminal as that of its session, and runs the command as the foreground job, as an interactive shell does.
_SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
job = os.fork()
if not job:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
code = os.waitstatus_to_exitcode(os.waitpid(job, 0)[1])
sys.exit(code if code >= 0 else 128 - code)
"""
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])")
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07]*)?\Z")  # of which the rest is still to be read


class Terminal:
    """Runs a command of chiplog. Use it as a context manager: it kills a command that is left.

    controls: the command is the foreground job of the terminal, so that Ctrl-C and Ctrl-Z reach it as signals.
    """

    def __init__(self, root: Path, *arguments: str, width: int = 100, height: int = 30, controls: bool = False) -> None:
        self.master, slave = pty.openpty()
        self.resize(width, height)
        env = environment(root, TERM="xterm-256color")
        self.modes = termios.tcgetattr(slave)
        command = [*((sys.executable, "-c", _SHELL) if controls else ()), *CLI, *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=controls
        )
        self._slave = slave  # kept open, to read the modes after the command
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self._slave)
        os.close(self.master)

    @property
    def job(self) -> int:
        """The PID of the command that is the foreground job."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def resize(self, width: int, height: int) -> None:
        """Change the size."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    def wait_for(self, pattern: str, wait_s: float = WAIT_S) -> re.Match[str]:
        """Read until the text since the last match has a match; return it, and forget the text up to its end."""
        deadline = time.monotonic() + wait_s
        while True:
            begun = match[0] if (match := _BEGUN.search(self.raw)) else ""
            text = _CONTROL.sub("", self.raw.removesuffix(begun))
            if match := re.search(pattern, text):
                self.raw = text[match.end() :] + begun
                return match
            assert time.monotonic() < deadline, f"waited in vain for {pattern!r} in\n{text[-4000:]}"
            has_ended = self.process.poll() is not None  # before the last read
            assert self._read() or not has_ended, f"the command ended without {pattern!r}\n{text}"

    def end(self) -> int:
        """Read until the command has ended; return its exit code."""
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the command does not end"
            self._read()
        while self._read():
            pass
        return self.process.returncode

    def modes_are_restored(self) -> bool:
        """Return True if the terminal echoes and reads lines as before."""
        return termios.tcgetattr(self._slave)[3] == self.modes[3]

    def _read(self) -> bool:
        if not select.select([self.master], [], [], 0.05)[0]:
            return False
        self.raw += self._decoder.decode(os.read(self.master, 65_536))
        return True
