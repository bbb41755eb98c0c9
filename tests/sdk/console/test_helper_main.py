"""The helper's program, started as helper_process.py does: what it needs, which signals it ignores, when it ends."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import zmq

import chiplog
import chiplog_schemas
from chiplog.console import helper_main
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from tests.support.journals import read_events
from tests.support.waiting import WAIT_S

PATHS = [str(Path(module.__path__[0]).parent) for module in (chiplog, chiplog_schemas, zmq, msgpack)]


class Program:
    """The program with one captured stream."""

    def __init__(self, root: Path, target: Path) -> None:
        place = paths_for_root(root)
        ensure_private_dir(place.root)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(WAIT_S)
        lock = os.memfd_create("lock")
        source, self.writer = os.pipe()
        os.set_blocking(source, False)
        output = os.open(target, os.O_WRONLY | os.O_CREAT)
        config = {
            "places": [str(path) for path in (place.root, place.local, place.run)],
            "mode": "offline",
            "agent": "",
            "limits": dataclasses.asdict(Limits()),
            "identity": {"node": "a", "of": "00" * 16},
            "streams": [(1, source, output)],
            "watch": [],
            "lock": lock,
            "journal": "",
            "pid": os.getpid(),
        }
        self.control.send(json.dumps(config).encode())
        command = [sys.executable, "-P", "-S", helper_main.__file__, str(theirs.fileno()), *PATHS]
        given = (theirs.fileno(), lock, source, output)
        self.process = subprocess.Popen(command, pass_fds=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        theirs.close()
        for number in given[1:]:
            os.close(number)
        assert self.receive() == {"ready": self.process.pid}

    def receive(self) -> dict[str, object]:
        message: dict[str, object] = json.loads(self.control.recv(4096))
        return message

    def end(self) -> None:
        """Close the last writer of the stream."""
        os.close(self.writer)
        self.writer = -1

    def close(self) -> None:
        if self.writer >= 0:
            self.end()
        self.process.kill()
        self.process.communicate()
        self.control.close()


@pytest.fixture
def program(chiplog_dir: Path, tmp_path: Path) -> Iterator[Program]:
    program = Program(chiplog_dir, tmp_path / "target")
    yield program
    program.close()


def test_the_program_relays_and_records_until_the_last_writer_has_closed(
    program: Program, tmp_path: Path, chiplog_dir: Path
) -> None:
    os.write(program.writer, b"a line\nand a half")
    other = os.dup(program.writer)
    program.end()
    os.write(other, b" more\n")
    os.close(other)
    assert program.receive() == {"finished": True}
    assert program.process.communicate(timeout=WAIT_S)[0] == b""
    assert program.process.returncode == 0
    assert (tmp_path / "target").read_bytes() == b"a line\nand a half more\n"
    events = read_events(chiplog_dir / "offline")
    lines = [event.fields["line"] for event in events if event.kind == EventKind.CONSOLE]
    assert lines == ["a line", "and a half more"]


def test_signals_that_end_a_training_do_not_end_the_program_that_shows_its_last_words(
    program: Program, tmp_path: Path
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        program.process.send_signal(number)
    os.write(program.writer, b"last words\n")
    program.end()
    assert program.receive() == {"finished": True}
    assert program.process.wait(WAIT_S) == 0
    assert (tmp_path / "target").read_bytes() == b"last words\n"


def test_the_program_has_its_own_session_and_maps_no_package_before_the_first_line(program: Program) -> None:
    assert os.getsid(program.process.pid) == program.process.pid, "launchers kill process groups"
    mapped = Path(f"/proc/{program.process.pid}/maps").read_text()
    assert "site-packages" not in mapped
    os.write(program.writer, b"a line\n")
    program.end()
    assert program.receive() == {"finished": True}
