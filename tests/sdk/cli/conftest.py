"""Fixtures of the commands' tests: databases, and what runs a command as a process."""

import contextlib
import fcntl
import io
import os
import pty
import socket
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chiplog_cli.root import main
from tests.support.command_line import CLI, call, environment, fork, forking_process
from tests.support.hand_written import hand_written, kept_open
from tests.support.recorded import fill_three_runs
from tests.support.shown_runs import fill_shown_runs
from tests.support.waiting import WAIT_S


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Iterator[Path]:
    """Return a directory whose database has three runs."""
    root = tmp_path_factory.mktemp("recorded")
    with hand_written(root) as database:
        fill_three_runs(database)
    with kept_open(root):
        yield root


@pytest.fixture(scope="session")
def forking(recorded) -> Iterator[socket.socket]:
    with forking_process(recorded) as requests:
        yield requests


@pytest.fixture
def chiplog(recorded) -> Callable[..., tuple[int, str, str]]:
    """Run a command; return code, stdout, stderr. With its own variables it gets its own process."""

    def run(*arguments: str, stdin: str = "", root: Path = recorded, **more: str) -> tuple[int, str, str]:
        if more:
            env = environment(root, **more)
            done = subprocess.run(
                [*CLI, *arguments], input=stdin, capture_output=True, text=True, env=env, timeout=WAIT_S
            )
            code, text, errors = done.returncode, done.stdout, done.stderr
        else:
            code, text, errors = call(root, arguments, stdin)
        assert "Traceback" not in errors
        return code, text, errors

    return run


@pytest.fixture
def on_terminal(recorded, forking) -> Callable[..., str]:
    """Run a command on a terminal and return its output with colours. With typed input it gets its own interpreter."""

    def run(width: int, *arguments: str, typed: str = "") -> str:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        process = None
        if typed:
            env = environment(recorded, TERM="xterm-256color")
            process = subprocess.Popen([*CLI, *arguments], stdin=slave, stdout=slave, stderr=slave, env=env)
            os.close(slave)
            os.write(master, typed.encode())
        else:
            fork(forking, arguments, [slave] * 3, CHIPLOG_DIR=str(recorded), TERM="xterm-256color")
        shown = b""
        while True:
            try:
                part = os.read(master, 65_536)
            except OSError:  # EIO: the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(master)
        assert (process.wait(WAIT_S) if process else int(forking.recv(100))) == 0
        return shown.decode().replace("\r\n", "\n")

    return run


@pytest.fixture(scope="module")  # pages show ages: of a database that has just been filled
def show(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a function that shows a run of another database as a table or json. Results are cached."""
    root = tmp_path_factory.mktemp("shown")
    with hand_written(root) as database:
        fill_shown_runs(database)

    @cache
    def shown(run: str, *options: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(["show", run, "--dir", str(root), *options]) == 0
        return printed.getvalue()

    with kept_open(root):
        yield shown
