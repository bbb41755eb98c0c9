"""Scripts whose console is captured, and what is recorded of them."""

import os
import pty
import select
import struct
import subprocess
import sys
import termios
import textwrap
import time
from fcntl import ioctl
from pathlib import Path
from typing import Any

from chiplog_schemas.model.events import EventKind
from tests.support.journals import read_events
from tests.support.waiting import WAIT_S, wait_until

HEAD = """
import ctypes, os, signal, subprocess, sys, time
import chiplog

def init(**more):
    return chiplog.init(**{"mode": "offline", "run_id": "r", "label": "a", **more})

def helper_of(run):
    while not run._console.capture.helper: time.sleep(0.01)
    return run._console.capture.helper

def waiting(run, stream):
    from chiplog.console.relay import bytes_available
    return bytes_available(run._console.capture._redirect._streams[stream].source)

libc = ctypes.CDLL(None)
"""


def script(tmp_path: Path, body: str, name: str = "train.py") -> str:
    """Write a script, and return its path."""
    path = tmp_path / name
    path.write_text(HEAD + textwrap.dedent(body))
    return str(path)


def run_script(tmp_path: Path, body: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a script with every warning as an error."""
    command = [sys.executable, "-W", "error", script(tmp_path, body)]
    return subprocess.run(command, capture_output=True, timeout=WAIT_S, **options)


def recorded(chiplog_dir: Path, n_lines: int) -> list[tuple[int, str]]:
    """Return (stream, line) of the recorded lines, in the order of their numbers; wait until there are as many."""
    found: list[tuple[int, int, str]] = []

    def look() -> bool:
        nonlocal found
        lines = [event.fields for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.CONSOLE]
        found = sorted((line["line_no"], line["stream"], line["line"]) for line in lines)
        return len(found) >= n_lines

    wait_until(look, f"{n_lines} lines")
    assert len({number for number, _, _ in found}) == len(found), "numbers of lines are drawn once"
    return [(stream, line) for _, stream, line in found]


def notices(chiplog_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Return the bodies of the notices of one kind."""
    found = [event.fields for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.NOTICE]
    return [fields["body"] for fields in found if fields["notice"] == kind]


def timed_lines(chiplog_dir: Path) -> list[tuple[int, str]]:
    """Return (time, line) of the recorded lines of all journals."""
    events = read_events(chiplog_dir / "offline")
    return [(e.ts, e.fields["line"]) for e in events if e.kind == EventKind.CONSOLE]


def on_terminal(command: list[str]) -> bytes:
    """Run a command on a terminal of 80 by 24 that becomes 91 wide, answer its question, and return its output."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown = b""
    answered = False
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            try:
                shown += os.read(master, 4096)
            except OSError:
                break  # the last one has closed it
        if b"say: " in shown and not answered:
            answered = True
            os.write(master, b"hello\n")
        if b"you said" in shown:
            ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 91, 0, 0))
    os.close(master)
    assert process.wait(WAIT_S) == 0, shown
    return shown
