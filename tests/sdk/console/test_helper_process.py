"""The helper's process and the socket to it: real helpers on a pipe, one after the other."""

import dataclasses
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chiplog.console.helper_process import OUTPUT, HelperProcess
from chiplog.console.stream_fds import StreamFds
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.process import daemon
from chiplog_schemas.process.daemon import output_path
from chiplog_schemas.process.exit_status import STATUS_NAME
from tests.support.console import recorded, run_script
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


@proves(
    "helper-reads-under-gil",
    "native code that prints while it holds the GIL does not wait for the rank's own threads",
    part="helper",
    new='["sleep", "30"]',
)
def test_native_code_that_prints_a_megabyte_while_it_holds_the_gil_goes_on(chiplog_dir, tmp_path) -> None:
    done = run_script(
        tmp_path,
        """
        run = init()
        held = ctypes.PyDLL(None)  # its calls keep the GIL
        line = b"x" * 1023 + b"\\n"
        for _ in range(1024): assert held.write(1, line, len(line)) == len(line)
        print("done", file=sys.stderr)
        """,
    )
    assert done.stderr == b"done\n"
    assert done.stdout == (b"x" * 1023 + b"\n") * 1024
    assert len(recorded(chiplog_dir, 1025)) == 1025


class Pipe:
    """A captured stream, its helper, and the lock of both."""

    def __init__(self, where: Paths, target: Path, journal: Path | None = None) -> None:
        self.lock = os.memfd_create("lock")
        source, self.writer = os.pipe()
        os.set_blocking(source, False)
        self.stream = StreamFds(1, source, os.open(target, os.O_WRONLY | os.O_CREAT))
        config = {
            "places": [str(path) for path in (where.root, where.local, where.run)],
            "mode": "offline",
            "agent": "",
            "limits": dataclasses.asdict(Limits()),
            "identity": {"node": "a", "of": "00" * 16},
            "journal": "" if journal is None else str(journal),
        }
        self.helper = HelperProcess(where, config)

    def start(self) -> int:
        """Start a helper, and return its PID once it is ready."""
        self.helper.start(self.lock, [self.stream])
        message = self.helper.receive(WAIT_S)
        assert message is not None
        return int(message["ready"])

    def end(self) -> None:
        """Close the stream's descriptors: the helper relays the rest, and ends."""
        if self.writer >= 0:
            for number in (self.writer, *self.stream.fds):
                os.close(number)
            self.writer = -1

    def close(self) -> None:
        self.end()
        if self.helper.is_connected:
            wait_until(lambda: self.helper.receive(1.0) == {"gone": True}, "the end of the helper")
        self.helper.close()
        os.close(self.lock)


@pytest.fixture
def where(chiplog_dir: Path) -> Paths:
    found = paths_for_root(chiplog_dir)
    ensure_private_dir(found.root)
    return found


@pytest.fixture
def open_pipe(where: Paths, tmp_path: Path) -> Iterator[Callable[..., Pipe]]:
    opened: list[Pipe] = []

    def open_one(journal: Path | None = None) -> Pipe:
        opened.append(Pipe(where, tmp_path / "target", journal))
        return opened[-1]

    yield open_one
    for pipe in opened:
        pipe.close()


def test_a_helper_gets_the_streams_and_is_no_child_and_ends_with_them(open_pipe, tmp_path: Path) -> None:
    pipe = open_pipe()
    assert not pipe.helper.is_connected
    pid = pipe.start()
    assert (pipe.helper.is_connected, pipe.helper.n_starts) == (True, 1)
    wait_until(lambda: pipe.helper.reap() or not pipe.helper._shells, "the end of the shell")
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    assert os.getsid(pid) != os.getsid(0)
    os.write(pipe.writer, b"a line\n")
    pipe.end()
    assert pipe.helper.receive(WAIT_S) == {"finished": True}
    assert pipe.helper.receive(WAIT_S) == {"gone": True}
    assert (tmp_path / "target").read_bytes() == b"a line\n"


def test_the_next_helper_continues_with_what_a_killed_one_has_left(open_pipe, tmp_path: Path) -> None:
    pipe = open_pipe()
    first = pipe.start()
    os.kill(first, signal.SIGKILL)
    assert pipe.helper.receive(WAIT_S) == {"gone": True}
    pipe.helper.send({"finish": True})  # to no helper: harmless
    os.write(pipe.writer, b"left in the pipe\n")
    assert pipe.start() != first
    assert pipe.helper.n_starts == 2
    pipe.helper.send({"finish": True})
    assert pipe.helper.receive(WAIT_S) == {"finished": True}
    assert (tmp_path / "target").read_bytes() == b"left in the pipe\n"
    assert pipe.helper.receive(0.0) is None, "nothing more"


def test_a_helper_has_the_environment_and_descriptors_that_it_needs_and_no_others(
    open_pipe, where: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    with open(tmp_path / "inherited", "w") as file:
        os.set_inheritable(file.fileno(), True)
        pid = open_pipe().start()
        opened = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    names = {entry.partition("=")[0] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0")}
    assert not names & {"LD_PRELOAD", "PYTHONSTARTUP", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"}
    assert f"CHIPLOG_DIR={where.root}" in Path(f"/proc/{pid}/environ").read_text().split("\0")
    assert str(tmp_path / "inherited") not in opened
    assert os.readlink(f"/proc/{pid}/fd/2") == str(output_path(where, OUTPUT))


def test_a_helper_of_a_run_with_a_journal_records_how_the_rank_ends(open_pipe, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    pid = open_pipe(journal).start()
    opened = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    assert str(journal / STATUS_NAME) in opened
    assert any("pidfd" in name for name in opened)
    shutil.rmtree(journal)  # else the helper waits for the end of this process


def test_a_log_of_the_helpers_that_is_too_long_is_truncated(open_pipe, where: Paths, monkeypatch) -> None:
    monkeypatch.setattr(daemon, "OUTPUT_BYTES_MAX", 10)
    ensure_private_dir(where.run)
    output_path(where, OUTPUT).write_bytes(b"x" * 10)
    open_pipe().start()
    assert output_path(where, OUTPUT).read_bytes() == b"x" * 10
    output_path(where, OUTPUT).write_bytes(b"x" * 11)
    open_pipe().start()
    assert output_path(where, OUTPUT).read_bytes() == b""


def test_a_start_without_an_interpreter_opens_nothing(open_pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = open_pipe()
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(OSError, match=r"no sys\.executable"):
        pipe.start()
    assert os.listdir("/proc/self/fd") == before
    assert not pipe.helper.is_connected


def test_a_socket_that_the_training_closed_is_left_to_its_new_owner(open_pipe, tmp_path: Path) -> None:
    pipe = open_pipe()
    assert pipe.helper.is_ours, "there is none yet"
    pipe.start()
    assert pipe.helper.is_ours
    number = pipe.helper._control.fileno()
    with open(tmp_path / "other", "wb") as other:
        os.dup2(other.fileno(), number)
    assert not pipe.helper.is_ours
    pipe.helper.close()
    assert not pipe.helper.is_connected
    os.write(number, b"still open")
    os.close(number)
